"""HTTP APIs of other services and servers, as routes over the same models: one subpackage and plugin for each."""
