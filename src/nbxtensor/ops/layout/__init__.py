"""Moving elements without changing them: copies of any view, concatenation, padding."""
