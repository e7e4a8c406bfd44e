#include "support/faults/bad_input.hpp"

namespace bad_input {

namespace {

/// A weight of 6 rows: three heads of two.
muonrt_qk_clip_t clip_of(int32_t kind) {
  muonrt_qk_clip_t clip;
  muonrt_qk_clip_init(&clip);
  clip.kind = kind;
  clip.heads = 3;
  (kind == MUONRT_QK_CLIP_MLA_Q ? clip.nope : clip.head_dim) = 2;
  return clip;
}

}  // namespace

// What a setting says that another one would leave without effect; values beyond a range; meshes.
std::vector<BadCase> setting_cases() {
  using A = Arguments;
  return {
      {"transposed 7",
       kInvalid,
       {"param 'wk'", "transposed is 7"},
       [](A& a) { a.params[1].transposed = 7; }},
      {"batch_dims below 0",
       kInvalid,
       {"param 'wk'", "batch_dims is -1"},
       [](A& a) { a.params[1].batch_dims = -1; }},
      {"row_dims above all",
       kInvalid,
       {"param 'wk'", "row_dims is 2147483647"},
       [](A& a) { a.params[1].row_dims = INT32_MAX; }},
      {"no dimension for columns",
       kInvalid,
       {"param 'wk'", "batch_dims is 1 and row_dims 1", "shape is [9, 5]"},
       [](A& a) { a.params[1].batch_dims = 1; }},
      {"batch_dims beside a view",
       kInvalid,
       {"param 'wk'", "view is 2", "batch_dims is 0, row_dims 1"},
       [](A& a) {
         a.params[1].view = MUONRT_VIEW_MATRIX;
         a.params[1].row_dims = 1;
       }},
      {"custom with another list",
       kInvalid,
       {"group 0", "custom is given, but coefficients is 0", "MUONRT_COEFFICIENTS_CUSTOM"},
       [](A& a) { a.groups[0].custom = a.custom; }},
      {"restarts of the standard form",
       kInvalid,
       {"group 0", "restarts", "MUONRT_FORM_STANDARD"},
       [](A& a) {
         static const int32_t restarts[1] = {2};
         a.groups[0].form = MUONRT_FORM_STANDARD;
         a.groups[0].restarts = restarts;
         a.groups[0].n_restarts = 1;
       }},
      {"rope of a weight without",
       kInvalid,
       {"param 'wq'", "qk_clip: rope is 4 ('q' has none)"},
       [](A& a) {
         static muonrt_qk_clip_t clip = clip_of(MUONRT_QK_CLIP_Q);
         clip.rope = 4;
         a.params[0].qk_clip = &clip;
       }},
      {"head_dim of a latent weight",
       kInvalid,
       {"param 'wq'", "qk_clip: head_dim is 2 ('mla_q' has none)"},
       [](A& a) {
         static muonrt_qk_clip_t clip = clip_of(MUONRT_QK_CLIP_MLA_Q);
         clip.head_dim = 2;
         a.params[0].qk_clip = &clip;
       }},
      {"f16 transport",
       kInvalid,
       {"options: transport_dtype is f16", "use one of them"},
       [](A& a) { a.options.transport_dtype = MUONRT_DTYPE_F16; }},
      {"f16 momentum",
       kInvalid,
       {"group 0", "momentum_dtype is f16", "use one of them"},
       [](A& a) { a.groups[0].momentum_dtype = MUONRT_DTYPE_F16; }},
      {"longest timeout",
       kInvalid,
       {"timeout_ms is 9223372036854775807 (must lie in [1, 31622400000])"},
       [](A& a) { a.options.timeout_ms = INT64_MAX; }},
      {"options beyond 64 KiB",
       kInvalid,
       {"options: struct_size is 100000", "to 65536"},
       [](A& a) { a.options.struct_size = 100000; }},
      {"mesh dimension of 0",
       kInvalid,
       {"param 'wq': mesh [3, 0]", "size 0"},
       [](A& a) { a.mesh_shape[1] = 0; }},
      {"mesh dimensions of one name",
       kInvalid,
       {"param 'wq': mesh: two dims are named 'fsdp'"},
       [](A& a) { a.mesh_names[1] = "fsdp"; }},
      {"mesh rank below 0",
       kInvalid,
       {"param 'wq': mesh: rank -1 at position 1"},
       [](A& a) {
         a.mesh_ranks[1] = -1;
         a.mesh.ranks = a.mesh_ranks;
       }},
      {"mesh rank at two positions",
       kInvalid,
       {"param 'wq': mesh: rank 1 occurs at positions 1 and 2"},
       [](A& a) {
         a.mesh_ranks[2] = 1;
         a.mesh.ranks = a.mesh_ranks;
       }},
  };
}

}  // namespace bad_input
