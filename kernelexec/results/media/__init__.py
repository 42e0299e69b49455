"""Images and sounds of outputs, decoded, and the sizes of pictures."""
