// Reads a buffer, to measure what memory delivers: whether the exclusive or of the words that a thread reads is `sought`. The result only
// keeps compilers from removing loads.
//
// data (workgroups, AT_ONCE, WG) -> found (1).
// Division: a workgroup reads AT_ONCE * WG consecutive vec4s. A thread requests AT_ONCE of them before it uses the first.
// Bound by: the bytes of data.
#number WG AT_ONCE  // threads of a workgroup, vectors that a thread requests at once
#word row_tiles: u32  // workgroups along x; further ones follow along y
#word sought: u32
#read data: array<vec4<u32>> @words(4 * ((GRID_Y - 1) * p.row_tiles + GRID_X) * AT_ONCE * WG)  // (workgroups, AT_ONCE, WG)
#write found: array<u32> @words(1)                                                             // (1): 1 if found, else as it was

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let base = (wid.y * p.row_tiles + wid.x) * (AT_ONCE * WG) + t;
    var all = vec4<u32>(0u);
    #for i AT_ONCE
    let v$i = data[base + $iu * WG];
    #endfor
    #for i AT_ONCE
    all ^= v$i;
    #endfor
    if (((all.x ^ all.y) ^ (all.z ^ all.w)) == p.sought) {
        found[0] = 1u;
    }
}
