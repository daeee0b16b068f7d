"""Pixtral's encoder, for images of any size, and Mistral 3. `inputs` maps images in the API process."""
