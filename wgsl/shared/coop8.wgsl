// Matrices of 8x8: halves on the left and right, sums in f32.
alias $WLeft = coop_mat8x8<f16, A>;
alias $WRight = coop_mat8x8<f16, B>;
alias $WSums = coop_mat8x8<f32, C>;
