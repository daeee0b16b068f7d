"""The settings: declared once, read from flags, QUIRE_* variables and YAML.

`model_config` and `server_config` are frozen dataclasses whose fields (`setting`) have the help texts and defaults.
`options` makes flags from the fields, under the headings of `setting_groups`, and configs from parsed values;
`flag_parser` and `yaml_file` parse, and `near_names` suggests the setting that an unknown name probably means.
"""
