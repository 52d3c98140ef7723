// Q6_K: weight = d s (q - 32), 6-bit q, signed 8-bit s per 16 weights, d per superblock of 8 units. 210 bytes per 256
// weights.
//
// quants plane: per unit one vec4 = 16 bytes: byte j holds the low bits of weight j in its low and of weight j + 16
//   in its high nibble.
// scales plane: per superblock five vec4. The first four are two words per unit with the upper two bits of the codes:
//   bits 2f and 2f + 1 of byte b of word w belong to weight 16w + 4f + b. Byte i of the fifth is the s of weights 16i
//   .. 16i + 16.
//   From word `sub`: per superblock the f16 d, 2 bytes.

alias $W_Scales = vec4<u32>;   // the elements of the scales plane

// The code in the middle of the range, and whether its weight is 0.
const $W_CENTRE = 32.0;
const $W_CENTRED = true;

// Unit u lies in superblock u / 8, whose first vec4 is number 5 (u / 8) = (u / 2 without its lower two bits) + u / 8.
fn $W_codes(u: u32) -> W32Codes {
    let pair = $W_s[(u >> 1u) + (u >> 3u)];
    let high = select(pair.xy, pair.zw, (u & 1u) == 1u);
    return w32_or(w32_nibbles($W_q[u]), w32_upper_crumbs(high.x, high.y));
}

// The scales of the halves of the unit.
fn $W_scales(u: u32, sub: u32) -> vec2<f32> {
    let half = u >> 1u;
    let block = u >> 3u;
    let i = sub + (block >> 1u);
    let ds = unpack2x16float($W_s[i >> 2u][i & 3u]);
    let d = select(ds.x, ds.y, (block & 1u) == 1u);
    let four = $W_s[(half & ~3u) + block + 4u][half & 3u];
    let two = select(four, four >> 16u, (u & 1u) == 1u);
    return d * vec2<f32>(unpack4xI8(two).xy);
}

fn $W_affine(u: u32, sub: u32) -> vec4<f32> {
    let s = $W_scales(u, sub);
    return vec4<f32>(s.x, -32.0 * s.x, s.y, -32.0 * s.y);
}

fn $W_unit(u: u32, sub: u32) -> W32 { return w32_biased($W_codes(u), 32.0, $W_scales(u, sub)); }
