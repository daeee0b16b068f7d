"""The torch modules that parts build.

`builder.ModuleBuilder` creates all matrices as `projection.Projection`, where fused matrices, quantization and
adapters are handled. A `blocks.DecoderModel` (or `encoder.EncoderModel`) embeds the tokens of a `ForwardBatch`, runs
its blocks through the op `fused_blocks`, and returns hidden states; `DecoderModel.logits` maps these to logits.
Towers (`quire_models.towers`) turn the tensors of images and audio into embedding rows before that; `pooling_heads` are
applied to hidden states after it.
"""
