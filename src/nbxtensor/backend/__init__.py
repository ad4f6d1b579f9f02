"""What drives devices: the contract of a backend, descriptions of devices, and one folder per backend."""
