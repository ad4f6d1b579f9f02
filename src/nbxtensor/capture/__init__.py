"""Plans of this machine's devices made to run: programs, recordings, replay, bundles."""
