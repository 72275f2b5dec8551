"""ListOps: vocabulary and text form, the generator, the reader of the released files."""
