// What workgroup memory consists of that matrices are loaded from: vectors, or numbers where a language wants pointers to
// numbers (Metal). An element is STAGE numbers.
#ifdef VECTORS
alias Stage = vec4<f16>;
const STAGE = 4u;
#else
alias Stage = f16;
const STAGE = 1u;
#endif
