//! The grids of the types below 4 bits: sets of points of 8 or 4 values, of which a block names one for as many weights.
//!
//! They are those of ggml-common.h (`iq1s_grid`, `iq2xxs_grid`, `iq2xs_grid`, `iq2s_grid`, `iq3xxs_grid`, `iq3s_grid`). Read as a number
//! whose digit `j` is the level of value `j`, the points of each grid ascend. So a grid is a set, and here it is written as one: a bit for
//! each number that could be a point, four to a hexadecimal digit, lowest first. In four of them the levels of each point have an even sum,
//! and the numbers with an odd one have no bit.

use std::sync::LazyLock;

use super::types::SMALL_BLOCK;

/// The points of a grid, by index.
pub(crate) struct Grid<const N: usize> {
    /// The values that a coordinate may have, ascending.
    pub(crate) levels: &'static [i8],
    /// The values of each point.
    pub(crate) points: Vec<[i8; N]>,
}

/// The numbers that have a bit in the set of a grid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// All of them.
    Any,
    /// Points whose digits have an even sum.
    Even,
}

impl<const N: usize> Grid<N> {
    fn new(levels: &'static [i8], sums: Sums, set: &str) -> Self {
        let numbers = 0..levels.len().pow(N as u32);
        let digits = |number: usize| -> [usize; N] {
            std::array::from_fn(|j| number / levels.len().pow(j as u32) % levels.len())
        };
        let may_be = |digits: &[usize; N]| match sums {
            Sums::Any => true,
            Sums::Even => digits.iter().sum::<usize>().is_multiple_of(2),
        };
        let bits = set.chars().flat_map(|digit| {
            let four = digit.to_digit(16).unwrap_or_default();
            (0..4).map(move |i| four >> i & 1 == 1)
        });
        let candidates = numbers.map(digits).filter(may_be);
        let points = candidates.zip(bits).filter(|(_, bit)| *bit);
        Self {
            levels,
            points: points
                .map(|(digits, _)| digits.map(|i| levels[i]))
                .collect(),
        }
    }
}

impl<const N: usize> Grid<N> {
    /// The largest level, which no value of a point and no level exceeds in size.
    pub(crate) fn largest(&self) -> i8 {
        self.levels.last().copied().unwrap_or_default()
    }
}

/// 32 weights as a block stores them: value = scale * point * sign.
pub(crate) struct Run<const POINTS: usize> {
    /// Indices of the points of 32 / POINTS weights each.
    pub(crate) points: [u16; POINTS],
    /// Bit `j`: whether weight `j` is negative.
    pub(crate) signs: u32,
    /// The scale of each half.
    pub(crate) scales: [f32; 2],
}

impl<const POINTS: usize> Run<POINTS> {
    /// The weights of the run.
    pub(crate) fn dequantize<const N: usize>(&self, grid: &Grid<N>, out: &mut [f32; SMALL_BLOCK]) {
        const { assert!(N * POINTS == SMALL_BLOCK) };
        let (groups, _) = out.as_chunks_mut::<N>();
        for (i, (out, &point)) in groups.iter_mut().zip(&self.points).enumerate() {
            let scale = self.scales[2 * i / POINTS];
            let signs = self.signs >> (N * i);
            for (j, (out, &value)) in out
                .iter_mut()
                .zip(&grid.points[usize::from(point)])
                .enumerate()
            {
                let value = scale * f32::from(value);
                *out = if signs >> j & 1 == 1 { -value } else { value };
            }
        }
    }

    /// The weights divided by their scales, plus the [largest](Grid::largest) level.
    #[inline(always)]
    pub(crate) fn codes<const N: usize>(&self, grid: &Grid<N>) -> [u8; SMALL_BLOCK] {
        const { assert!(N * POINTS == SMALL_BLOCK) };
        let zero = grid.largest() as u8;
        let mut codes = [0; SMALL_BLOCK];
        let (groups, _) = codes.as_chunks_mut::<N>();
        for (i, (out, &point)) in groups.iter_mut().zip(&self.points).enumerate() {
            let signs = self.signs >> (N * i);
            let values = &grid.points[usize::from(point)];
            for j in 0..N {
                let value = values[j] as u8;
                out[j] = match signs >> j & 1 {
                    0 => zero + value,
                    _ => zero - value,
                };
            }
        }
        codes
    }
}

/// The signs of 32 weights whose every eighth sign makes the number of negative ones of its eight even: only the other
/// seven of each eight are stored, in the lower 28 bits.
pub(crate) fn even_signs(stored: u32) -> u32 {
    (0..4).fold(0, |signs, i| {
        let seven = stored >> (7 * i) & 127;
        signs | (seven | (seven.count_ones() & 1) << 7) << (8 * i)
    })
}

/// The levels of IQ2_XXS, IQ2_XS and IQ2_S.
const LEVELS_2: [i8; 3] = [8, 25, 43];

/// The 2048 points of IQ1_S and IQ1_M.
pub(crate) static IQ1: LazyLock<Grid<8>> = LazyLock::new(|| {
    Grid::new(
        &[-1, 0, 1],
        Sums::Any,
        "555241580a2024158054138a6802a82aa180a20241580541280244545251500a20280288810080280a30a20a88bbaaa009aab0002200a0aac8280a80\
        041580541288080541241580a80380890a8008a2805412415802842455805410c22c0a02a86200a2428aaa2a802efa80808282000a202482aa82028a\
        0802a0b9809bab8a02acea982aeaaaa3c7beaeabbb28e08b22abac3de02920220022028aa8aba028208000a2a40e2ab32202b22a00180418aaa88280\
        221041580551280290541245580a8020328aa302482802452415802a028059054120a2808b8a28080a84200280282a862a2082baa280580280280380\
        540400541241580a002415005410922800a828a2801a03415005412882805412415802202002aaa20002211ba8ea828aab1aaa8a070028a080208222\
        204800280084080aae0ba2aa2c02b8ab22aead7ab8b8e68a290ba2aa27b8a844c0a20284480482a8a280aa028ccc2a222afaa90a8e8a20002000a28a\
        880002080ab82a2a82ab0a082823a0abeb8babefbe2a0ab22a80a8a082ae2a001a2320c0af4aaeedfeb28ae2d8ebe7beaf7ff7fb6ed7abed96bf72ff\
        fb62af219e1ea82201aaebe048aa802b8ab028eaffab429e38084026c2862f8aa04ab20020a280802eaa21002028a2a06a029c2898092882002a00c8\
        08310028808000c6a8aaaabb206aeba80aac2008b679e20d2b9e012801e2aaed82511d5a4000a02800a8280280101a0228aa93ab2223480a90088100\
        a82a262018414415005412ca280541241580aa0282aa78a021a280541241500a80241580541002200a042a22008800802a80a6a8e68baaaa080002a0\
        282e8c221280440541241590a8025158054168a080aaa2a20800a024158054128a0005412415802e028828a08128a280aa2aaaa80bb820a0a2aa0282\
        2808aaa0828082009a8820220aebb0828b80a8abb42beaffab4a8feaaa022582866b0a036e08a020828022a6260802a020aaaab2aaae2a9a0a2a8080\
        01020aa8220028e000541241580aa004158054129a6000a4aa20805a0001d044412882805412415000802828ca2f02000000aaa082a0ab02ae2a2000\
        288490829e410011b454150054108a2005412415808842808882a0048000541041500a20041580541",
    )
});

/// The 256 points of IQ2_XXS.
pub(crate) static IQ2_XXS: LazyLock<Grid<8>> = LazyLock::new(|| {
    Grid::new(
        &LEVELS_2,
        Sums::Even,
        "f76f4a99026a040002806080000200c489501628c2804003400c00100800962866002002002000000240000000062440802502140880100000120000\
        0428280020000400040008040000000031020080005000000001000080000062001013000004400000c0000000008900180000800020800000000000\
        800802000002000000000000000100000c4a94416204080002a008800880100840100040400240000000100000000062041000002000041200000020\
        00204ac00002100100200000100000008000000000810010000000020000100002420002000000800000002000000000900100100800008000000800\
        04000050000000000600000200000000000000001000000000000000000000000089002008000280200000002000000006a040800002000200040020\
        800100080000000000100000000001000000002142000001080000800000001000002080100000000001000000000000000000000400000100000000\
        00000000020004002000100000000200000000000200000000000000000000000000000000200000200000000000000000000",
    )
});

/// The 512 points of IQ2_XS.
pub(crate) static IQ2_XS: LazyLock<Grid<8>> = LazyLock::new(|| {
    Grid::new(
        &LEVELS_2,
        Sums::Even,
        "fffdfb97b1effcb94310ed48920110cfb9771620cb9031220089043008008f35621408831020084001021000041efdcb98310ed489001c0c50800100\
        0cb90b14200890010000080200100000330280020050000020000000800000ff48900102c4084040004001000200a908100000800024000401010000\
        004912001040200000040100140000a10cfb9f35620cb90310a08891810000087b162040103142000080110840000062041110002400908000800000\
        0000cb943102008920300000800040000083122048001900000840000400040022808800001004810000000000008008900144010c00000000000040\
        2000101800000000020410000400000000004000000100000200000002000440008731720c00c710242000010200081096e040808002000100008002\
        00001004202001600220000000000020004224310201010010400010000000020800a000940000000400006000001000000000020000200001000000\
        400040000b12200000100008400086104000102000800008000000000000000008002080b0000084200000030000030000101",
    )
});

/// The 1024 points of IQ2_S.
pub(crate) static IQ2_S: LazyLock<Grid<8>> = LazyLock::new(|| {
    Grid::new(
        &LEVELS_2,
        Sums::Even,
        "fffdfbf735ffdcbf6376ed4cf20554cfbfff7ebdcff6ff6ed48f20d62c4087f5ffd41183f2ad488001643400080efddbf77d6effbf73f60c69923062\
        0cbf6ff6ed48f73f62c4086316204008fd2ed48100f62c4040024204020000ed7d932150ec98331620440d210030af63f62c40863162050003102020\
        000560c40080072000000400280002810cffbff76adcbf3ff6ed48972d62c008fffefdcb90ff6ed4c900f62c4080046fdcb90210ed48900180c40800\
        0000cbf7ff6ed08f73f62c4086316206000ff6ed48900f62c4080006205000000ed48980100c4080000004040000800ab73d62840873162040402102\
        010001d62c40800062044040202000000040c4000040014008000000000020000887b56e54910bf6ed08908570c400000ef5cb90310ed48900110c40\
        c0000004910310008810010800000020038001bf4ed48900560c4400006204000008ed48900180c40800000540004040008904100000c00005000000\
        000000800554e40000210040020004286000a10d4080000184040000000000002000008080000001000080020081610004001",
    )
});

/// The 256 points of IQ3_XXS.
pub(crate) static IQ3_XXS: LazyLock<Grid<4>> = LazyLock::new(|| {
    Grid::new(
        &[4, 12, 20, 28, 36, 44, 52, 62],
        Sums::Even,
        "7b31200633531401713b0904934000010208480690020200000400400d00201033378100313000003311000230118080500001000050800140000000\
        0020100033b12000731100a1393814001500000500040200208010040000000038004000133001423011c00031400202010200000001800290200400\
        0408002000020010480c0a00000000040018109080004000400001400040200100000000430100000200100190800400040200022000020001a00002\
        2001000000000100004020000040c04000100010080000400009000000004000400002000002000020100000e1020200008010000200420014020010\
        00101000304000000001000000000000",
    )
});

/// The 512 points of IQ3_S.
pub(crate) static IQ3_S: LazyLock<Grid<4>> = LazyLock::new(|| {
    Grid::new(
        &[1, 3, 5, 7, 9, 11, 13, 15],
        Sums::Any,
        "7a7532805aa0502971329822010022403a9422114aa00090802250a4015008221088214090200010410054802a00048004a000200040002051005480\
        0011000071ba502500052040b411209020500014104a1140900210402990281120004010824100a04411000020902050002000000000190005000000\
        a050200220004010ba55a850a250089250984221402000002900a01820880021522041a0401004002800904220000042012040081080001058002000\
        00022000022004108010000040aa40a249208020a201a0001000104410401041001000002011a810a802008080244020004011002050024001040080\
        0004000020000000a000500200000000114019402010001048a0401280220000a01220801008401001a050220000000050000108100000200a002000\
        00004000008000010000100000120010802000004011400019400401a240204000000040102080140080000048100800012002802100104004000000\
        0040040000a000000000000040000000410040000000000000a200a00000100010001800000001000040000140024010100120001000000000000200\
        800040009000000100001000020000001000000000a00000000000001900500410014000402001008200000021142010002000004000004200800000\
        2280100000100000000040004000000040000020000000001000000000000000",
    )
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_as_large_as_their_indices() {
        let of_eight = [(&IQ1, 11), (&IQ2_XXS, 8), (&IQ2_XS, 9), (&IQ2_S, 10)];
        for (grid, bits) in of_eight {
            assert_eq!(grid.points.len(), 1 << bits);
        }
        for (grid, bits) in [(&IQ3_XXS, 8), (&IQ3_S, 9)] {
            assert_eq!(grid.points.len(), 1 << bits);
        }
        assert_eq!(
            (IQ2_XXS.points[0], IQ2_XXS.points[1]),
            ([8; 8], [43, 8, 8, 8, 8, 8, 8, 8])
        );
        assert_eq!(IQ3_S.points[511][3], 15);
    }

    #[test]
    fn every_eighth_sign_makes_eight_even() {
        assert_eq!(even_signs(0), 0);
        assert_eq!(even_signs(0b1), 0b1000_0001);
        assert_eq!(even_signs(0b11 | 0b1 << 21), 0b11 | 0b1000_0001 << 24);
        assert_eq!(even_signs(0xf << 28), 0, "the upper bits are no signs");
        for stored in [0x0abc_def1, 0x0765_4321] {
            let signs = even_signs(stored);
            assert!(
                signs
                    .to_le_bytes()
                    .iter()
                    .all(|eight| eight.count_ones() % 2 == 0)
            );
        }
    }
}
