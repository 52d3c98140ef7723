//! Metal's source as C++: what differs in spelling, and an entry for the threads.

use super::msl::Msl;
use std::collections::HashSet;

/// The text of a program.
///
/// # Errors
/// The part of the text that has no translation.
pub(super) fn translated(msl: &Msl) -> Result<String, String> {
    let mut text = String::new();
    // Functions that differ in the address space of a pointer only are one function in C++.
    let mut seen = HashSet::new();
    let mut skips = false;
    for line in msl.text.lines() {
        if line.contains(" NagaCooperativeLoad(const ") {
            let alike = line.replace("threadgroup ", "device ");
            skips = !seen.insert(alike);
        }
        if !skips {
            text += &of_line(line);
            text.push('\n');
        }
        skips &= line != "}";
    }
    if text.contains("_buffer_sizes.size") {
        return Err("the kernel asks for the length of a buffer".to_owned());
    }
    let entry = entry(&text, msl.threads)?;
    Ok(text + &entry)
}

/// A line with swizzles as calls, floats as such, and arrays of any length as such.
fn of_line(line: &str) -> String {
    if let Some(array) = line
        .strip_prefix("typedef ")
        .and_then(|l| l.strip_suffix("[1];"))
    {
        return format!("typedef {array}[];");
    }
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let before = out.chars().next_back();
        let word = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        if c == '.' {
            let name = &rest[1..];
            let end = name
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(name.len());
            let swizzle = (2..=4).contains(&end) && name[..end].chars().all(|c| "xyzw".contains(c));
            if swizzle {
                let index = |c| "xyzw".find(c).unwrap_or_default().to_string();
                let places: Vec<_> = name[..end].chars().map(index).collect();
                out += &format!(".at<{}>()", places.join(", "));
            } else {
                out += &rest[..=end];
            }
            rest = &name[end..];
        } else if c.is_ascii_digit() && !before.is_some_and(|b| b.is_ascii_alphanumeric()) {
            let end = number(rest);
            out += &literal(&rest[..end]);
            rest = &rest[end..];
        } else {
            let end = word.max(c.len_utf8());
            out += &rest[..end];
            rest = &rest[end..];
        }
    }
    out
}

/// A number of Metal's in C++, which has no halves but doubles.
fn literal(number: &str) -> String {
    match number.strip_suffix('h') {
        Some(half) => format!("metal::half({})", literal(half)),
        None if number.contains('.') && !number.ends_with('f') => format!("{number}f"),
        None => number.to_owned(),
    }
}

/// Bytes of the number that a text begins with.
fn number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let sign = end > 0 && bytes[end - 1] == b'e' && matches!(bytes[end], b'+' | b'-');
        if !(bytes[end].is_ascii_alphanumeric() || bytes[end] == b'.' || sign) {
            break;
        }
        end += 1;
    }
    end
}

/// The C++ function that calls the kernel for a thread, and the memory of a threadgroup.
fn entry(text: &str, threads: [u32; 3]) -> Result<String, String> {
    let (_, head) = text
        .split_once("kernel void main_(\n")
        .ok_or("no entry point")?;
    let (head, _) = head
        .split_once("\n) {")
        .ok_or("no end of the entry point")?;
    let (mut arguments, mut shared) = (vec![], vec![]);
    for line in head.lines() {
        let line = line.trim_start_matches([' ', ',']);
        let unknown = || format!("the parameter {line}");
        if let Some((ty, name)) = line
            .strip_prefix("threadgroup ")
            .and_then(|l| l.split_once("& "))
        {
            arguments.push(format!("shared_{name}"));
            shared.push((ty, name));
            continue;
        }
        let (declared, attribute) = line.split_once(" [[").ok_or_else(unknown)?;
        let attribute = attribute.trim_end_matches(']');
        arguments.push(match attribute.strip_prefix("buffer(") {
            Some(slot) => {
                let slot = slot.trim_end_matches(')');
                let (ty, _) = declared.rsplit_once("& ").ok_or_else(unknown)?;
                let ty = ["device ", "constant "]
                    .iter()
                    .find_map(|space| ty.strip_prefix(space));
                let ty = ty.ok_or_else(unknown)?.trim_end_matches(" const");
                format!("*reinterpret_cast<{ty}*>(kernel_slots[{slot}])")
            }
            None => place(attribute).ok_or_else(unknown)?.to_owned(),
        });
    }
    let mut entry = String::new();
    for (ty, name) in &shared {
        entry += &format!("static {ty} shared_{name};\n");
    }
    let arguments = arguments.join(", ");
    entry += &format!("void kernel_thread(const KernelPlace &place) {{ main_({arguments}); }}\n");
    let [x, y, z] = threads;
    entry += &format!("const unsigned kernel_threads[3] = {{{x}, {y}, {z}}};\n");
    let all = shared.iter();
    let all = all.map(|(_, name)| format!("{{&shared_{name}, sizeof shared_{name}}}, "));
    let all: String = all.collect();
    entry += &format!("KernelShared kernel_shared[] = {{{all}{{0, 0}}}};\n");
    entry += &format!("const unsigned kernel_shared_count = {};\n", shared.len());
    Ok(entry)
}

/// The C++ expression of a builtin.
fn place(builtin: &str) -> Option<&'static str> {
    Some(match builtin {
        "threadgroup_position_in_grid" => {
            "metal::uint3(place.workgroup[0], place.workgroup[1], place.workgroup[2])"
        }
        "threadgroups_per_grid" => {
            "metal::uint3(place.workgroups[0], place.workgroups[1], place.workgroups[2])"
        }
        "thread_position_in_grid" => {
            "metal::uint3(place.workgroup[0] * place.threads[0] + place.index, place.workgroup[1], place.workgroup[2])"
        }
        "thread_position_in_threadgroup" => "metal::uint3(place.index, 0u, 0u)",
        "thread_index_in_threadgroup" => "place.index",
        "simdgroups_per_threadgroup" => "place.simdgroups",
        "simdgroup_index_in_threadgroup" => "place.simdgroup",
        "thread_index_in_simdgroup" => "place.lane",
        "threads_per_simdgroup" => "32u",
        _ => return None,
    })
}
