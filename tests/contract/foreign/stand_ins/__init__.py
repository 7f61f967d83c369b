"""Small stand-ins for packages that are not installed, with the interfaces that hookline uses of them."""
