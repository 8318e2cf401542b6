"""The building blocks of pages: fields and forms, lists, charts, images and dialogs."""
