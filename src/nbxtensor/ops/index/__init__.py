"""Reading elements at places that are data: embedding, take, take_along_axis."""
