//! Every operation of the models as a pair: a WGSL kernel and its CPU twin of the same name.
