//! Kernels by cooperative matrices without the device's matrices, so that everything else of them runs on any adapter with f16.
//!
//! A lane holds a block of each sum, and of the factors the whole rows and columns that its block needs: products touch no
//! memory and no barrier is added, so a barrier that a kernel lacks shows as a wrong result. An adapter that runs the subgroups
//! of a workgroup in order shows one of two such races only: the other shows where threads are numbered backwards.
//!
//! Operations of subgroups stay as they are, and must not reach beyond the subgroups of the adapter.

/// `text` with plain code in place of its matrices, of `size` rows and of `lanes` lanes; with its threads numbered backwards where asked for.
pub fn emulated(text: &str, [size, lanes]: [usize; 2], backwards: bool) -> String {
    let mut text = Emulation::new(size, lanes).translate(text);
    if backwards {
        let forwards = "let t = subgroup * subgroup_size + lane_id;";
        assert!(text.contains(forwards), "{text}");
        let last = "let t = WG - 1u - subgroup * subgroup_size - lane_id;";
        text = text.replace(forwards, last);
    }
    text
}

struct Emulation {
    size: usize,
    lanes: usize,
    /// Rows and columns of a lane's block.
    block: [usize; 2],
    /// Names of matrix types with what they are: A, B or C.
    types: Vec<(String, char)>,
    /// Functions used, by name.
    functions: Vec<(String, String)>,
}

impl Emulation {
    fn new(size: usize, lanes: usize) -> Self {
        let block = match size * size / lanes {
            8 => [2, 4],
            2 => [1, 2],
            n => panic!("{size} rows, {lanes} lanes: {n} values of a lane"),
        };
        Self {
            size,
            lanes,
            block,
            types: vec![],
            functions: vec![],
        }
    }

    /// A lane's part of a matrix: vectors along the depth for factors, the block by rows for sums.
    fn of_lane(&self, role: char) -> String {
        let [rows, columns] = self.block;
        match role {
            'A' => format!("array<vec4<f32>, {}>", rows * self.size / 4),
            'B' => format!("array<vec4<f32>, {}>", columns * self.size / 4),
            _ => format!("array<f32, {}>", rows * columns),
        }
    }

    fn translate(&mut self, text: &str) -> String {
        let mut out = String::new();
        for line in text.lines() {
            // Comments speak of matrices, too.
            let line = line.split_once("//").map_or(line, |(code, _)| code);
            if line.starts_with("enable wgpu_cooperative_matrix") {
                continue;
            }
            match line.split_once("= coop_mat") {
                Some((alias, ty)) => {
                    let name = alias.trim_start_matches("alias").trim();
                    let expected = format!("{0}x{0}<", self.size);
                    assert!(ty.starts_with(&expected), "{line}");
                    let role = ty.chars().rfind(|c| "ABC".contains(*c)).expect("a role");
                    self.types.push((name.to_owned(), role));
                    out += &format!("alias {name} = {};", self.of_lane(role));
                }
                None => out += line,
            }
            out.push('\n');
        }
        out = self.calls(out);
        out += &self.multiply_add();
        for (_, function) in &self.functions {
            out += function;
        }
        out
    }

    /// Replaces the calls by those of functions, which it notes.
    fn calls(&mut self, mut text: String) -> String {
        text = text.replace("coopMultiplyAdd(", "multiply_add(");
        while let Some(begin) = text.find("coop") {
            let open = begin + text[begin..].find('(').expect("a call");
            let (arguments, end) = arguments(&text, open);
            let call = match &text[begin..open] {
                "coopStoreT" => {
                    let [matrix, pointer, pitch] = arguments[..] else {
                        panic!("arguments of {}", &text[begin..end]);
                    };
                    let (array, at) = element(pointer);
                    let name = format!("store_{array}");
                    let function = self.store(&text, &name, array);
                    self.note(&name, function);
                    format!("{name}(t, {matrix}, {at}, {pitch})")
                }
                load => {
                    let [pointer, pitch] = arguments[..] else {
                        panic!("arguments of {}", &text[begin..end]);
                    };
                    let (kind, ty) = load.split_once('<').expect("a type");
                    let ty = ty.trim_end_matches('>');
                    let role = self.types.iter().find(|(name, _)| name == ty);
                    let role = role.unwrap_or_else(|| panic!("{ty}: no matrix")).1;
                    let rows_first = match kind {
                        "coopLoadT" => true,
                        "coopLoad" => false,
                        other => panic!("{other} is not emulated"),
                    };
                    let (array, at) = element(pointer);
                    let order = if rows_first { "rows" } else { "columns" };
                    let name = format!("load_{role}_{order}_{array}");
                    let function = self.load(&text, &name, role, rows_first, array);
                    self.note(&name, function);
                    format!("{name}(t, {at}, {pitch})")
                }
            };
            text.replace_range(begin..end, &call);
        }
        text
    }

    fn note(&mut self, name: &str, function: String) {
        if self.functions.iter().all(|(known, _)| known != name) {
            self.functions.push((name.to_owned(), function));
        }
    }

    /// The beginning of the lane's block.
    fn place(&self) -> String {
        let [rows, columns] = self.block;
        let across = self.size / columns;
        format!(
            "  let lane = t % {}u;\n  let row = lane / {across}u * {rows}u;\n  let column = lane % {across}u * {columns}u;\n",
            self.lanes
        )
    }

    fn load(&self, text: &str, name: &str, role: char, rows_first: bool, array: &str) -> String {
        let width = width(text, array);
        let value = |row: &str, column: &str| {
            let (major, minor) = match rows_first {
                true => (row, column),
                false => (column, row),
            };
            format!("f32({})", indexed(array, width, major, minor))
        };
        let [rows, columns] = self.block;
        let depths = || (0..self.size).step_by(4);
        let (mut before, mut values) = (String::new(), vec![]);
        match role {
            // Whole vectors, where those of the memory lie along the depth.
            'A' | 'B' if width == 4 && (role == 'A') == rows_first => {
                let (first, own) = match role {
                    'A' => ("row", rows),
                    _ => ("column", columns),
                };
                for (i, k) in (0..own).flat_map(|i| depths().map(move |k| (i, k / 4))) {
                    let at = format!("at + ({first} + {i}u) * pitch + {k}u");
                    values.push(format!("vec4<f32>({array}[{at}])"));
                }
            }
            // Whole vectors of which each has a value of every column.
            'B' if width == 4 => {
                for k in 0..self.size {
                    let vector = format!("vec4<f32>({array}[at + {k}u * pitch + column / 4u])");
                    let own = match columns {
                        4 => format!("  let v{k} = {vector};\n"),
                        _ => format!(
                            "  let w{k} = {vector};\n  let v{k} = select(w{k}.xy, w{k}.zw, (column & 2u) != 0u);\n"
                        ),
                    };
                    before += &own;
                }
                for (i, k) in (0..columns).flat_map(|i| depths().map(move |k| (i, k))) {
                    let parts = [0, 1, 2, 3].map(|j| format!("v{}[{i}]", k + j));
                    values.push(format!("vec4<f32>({})", parts.join(", ")));
                }
            }
            'A' => {
                for (i, k) in (0..rows).flat_map(|i| depths().map(move |k| (i, k))) {
                    let part = |j| value(&format!("row + {i}u"), &format!("{}u", k + j));
                    values.push(format!("vec4<f32>({})", [0, 1, 2, 3].map(part).join(", ")));
                }
            }
            'B' => {
                for (i, k) in (0..columns).flat_map(|i| depths().map(move |k| (i, k))) {
                    let part = |j| value(&format!("{}u", k + j), &format!("column + {i}u"));
                    values.push(format!("vec4<f32>({})", [0, 1, 2, 3].map(part).join(", ")));
                }
            }
            _ => {
                for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                    values.push(value(&format!("row + {i}u"), &format!("column + {j}u")));
                }
            }
        }
        let ty = self.of_lane(role);
        format!(
            "fn {name}(t: u32, at: u32, pitch: u32) -> {ty} {{\n{}{before}  return {ty}(\n    {});\n}}\n",
            self.place(),
            values.join(",\n    ")
        )
    }

    fn store(&self, text: &str, name: &str, array: &str) -> String {
        let width = width(text, array);
        let [rows, columns] = self.block;
        let mut lines = String::new();
        for i in 0..rows {
            for j in 0..columns {
                let to = indexed(
                    array,
                    width,
                    &format!("row + {i}u"),
                    &format!("column + {j}u"),
                );
                lines += &format!("  {to} = m[{}];\n", i * columns + j);
            }
        }
        format!(
            "fn {name}(t: u32, m: {}, at: u32, pitch: u32) {{\n{}{lines}}}\n",
            self.of_lane('C'),
            self.place(),
        )
    }

    fn multiply_add(&self) -> String {
        let [rows, columns] = self.block;
        let depth = self.size / 4;
        let mut sums = vec![];
        for i in 0..rows {
            for j in 0..columns {
                let mut sum = format!("c[{}]", i * columns + j);
                for k in 0..depth {
                    sum += &format!(" + dot(a[{}], b[{}])", i * depth + k, j * depth + k);
                }
                sums.push(sum);
            }
        }
        let [a, b, c] = ['A', 'B', 'C'].map(|role| self.of_lane(role));
        format!(
            "fn multiply_add(a: {a}, b: {b}, c: {c}) -> {c} {{\n  return {c}(\n    {});\n}}\n",
            sums.join(",\n    ")
        )
    }
}

/// The arguments of the call whose parenthesis opens at `open`, and where it ends.
fn arguments(text: &str, open: usize) -> (Vec<&str>, usize) {
    let (mut depth, mut begin, mut found) = (0, open + 1, vec![]);
    for (i, c) in text[open..].char_indices() {
        let at = open + i;
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 1 => {
                found.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
        if depth == 0 {
            found.push(text[begin..at].trim());
            return (found, at + 1);
        }
    }
    panic!("a call without end: {}", &text[open..]);
}

/// Array and index of `&array[index]`.
fn element(pointer: &str) -> (&str, &str) {
    let (array, index) = pointer.split_once('[').expect("an element of an array");
    (
        array.trim_start_matches('&'),
        index.strip_suffix(']').expect("an element of an array"),
    )
}

/// The number of numbers that an element of an array holds, in which indices and pitches are counted.
fn width(text: &str, array: &str) -> usize {
    let (_, ty) = text
        .split_once(&format!("> {array}: array<"))
        .unwrap_or_else(|| panic!("{array} is not declared"));
    let name = ty.split([',', '>']).next().unwrap_or(ty);
    let ty = match text.split_once(&format!("alias {name} = ")) {
        Some((_, alias)) => alias,
        None => ty,
    };
    let width = ty.strip_prefix("vec").and_then(|ty| ty.get(..1));
    width.map_or(1, |n| n.parse().expect("a width"))
}

fn indexed(array: &str, width: usize, major: &str, minor: &str) -> String {
    if width > 1 {
        format!("{array}[at + ({major}) * pitch + ({minor}) / {width}u][({minor}) % {width}u]")
    } else {
        format!("{array}[at + ({major}) * pitch + {minor}]")
    }
}
