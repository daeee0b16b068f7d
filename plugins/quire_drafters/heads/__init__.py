"""Draft heads: small models that read the hidden states of the model they draft for (Medusa, EAGLE, MTP)."""
