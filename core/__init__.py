"""Small modules with one noun each; the stage scripts at the top level import from here, never the other way round."""
