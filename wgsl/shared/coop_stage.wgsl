// The elements of workgroup memory from which matrices are loaded, of STAGE values. They are vectors, or scalars for Metal, which loads
// matrices through pointers to scalars.
#ifdef VECTORS
alias Stage = vec4<f16>;
const STAGE = 4u;
#else
alias Stage = f16;
const STAGE = 1u;
#endif
