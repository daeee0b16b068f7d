"""Small useful plugins, one for each of the rarer hooks of Quire."""
