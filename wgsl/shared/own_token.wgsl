// The token that a workgroup is for, and its place among those of the token. With SEVERAL the grid has the tokens along x, and what it has
// without along y and z. Tokens that chose the same expert then read its
// rows at about the same time, so that all but the first find them in the second-level cache.
#ifdef SEVERAL
var<private> own_token: u32;
fn own_place(wid: vec3<u32>) -> vec2<u32> { own_token = wid.x; return wid.yz; }
#else
const own_token = 0u;
fn own_place(wid: vec3<u32>) -> vec2<u32> { return wid.xy; }
#endif
