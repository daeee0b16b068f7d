"""Groups of the settings of one model, which `quire.settings.model_config.ModelConfig` joins."""
