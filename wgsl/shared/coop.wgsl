// Cooperative matrices of MAT x MAT: factors of f16, sums of f32. MAT16 where MAT is 16, otherwise it is 8.
// Stage is what workgroup memory that they are loaded from consists of: vectors, or numbers where a language wants pointers to
// numbers (Metal).
#ifdef MAT16
alias MatA = coop_mat16x16<f16, A>;
alias MatB = coop_mat16x16<f16, B>;
alias MatC = coop_mat16x16<f32, C>;
#else
alias MatA = coop_mat8x8<f16, A>;
alias MatB = coop_mat8x8<f16, B>;
alias MatC = coop_mat8x8<f32, C>;
#endif
#ifdef VECTORS
alias Stage = vec4<f16>;
const STAGE = 4u;
#else
alias Stage = f16;
const STAGE = 1u;
#endif
