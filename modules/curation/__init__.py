"""What a person does to a dataset before training: captions, tags, and a journal that undoes it. No torch, no Tk."""
