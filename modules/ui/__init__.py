"""The window: what a person sees of Chorus. It never imports torch; trainings run in processes of their own."""
