// Matrices of 16x16: halves on the left and right, sums in f32.
alias $WLeft = coop_mat16x16<f16, A>;
alias $WRight = coop_mat16x16<f16, B>;
alias $WSums = coop_mat16x16<f32, C>;
