// Square cooperative matrices of MAT rows: 16 on Vulkan, 8 on Metal; LANES threads of one subgroup hold one together.
// f16 factors (A on the left, B on the right), f32 sums (C).
#ifdef COOP8
alias MatA = coop_mat8x8<f16, A>;
alias MatB = coop_mat8x8<f16, B>;
alias MatC = coop_mat8x8<f32, C>;
const MAT = 8u;
#else
alias MatA = coop_mat16x16<f16, A>;
alias MatB = coop_mat16x16<f16, B>;
alias MatC = coop_mat16x16<f32, C>;
const MAT = 16u;
#endif
