// Included by what naga writes; nothing of it is used.
