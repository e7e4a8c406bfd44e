#include "support/faults/bad_input.hpp"

namespace bad_input {

namespace {

/// Returns QK-clip settings for a weight of 6 rows: three heads of two rows each.
muonrt_qk_clip_t clip_of(int32_t kind) {
  muonrt_qk_clip_t clip;
  muonrt_qk_clip_init(&clip);
  clip.kind = kind;
  clip.heads = 3;
  (kind == MUONRT_QK_MLA_QUERY ? clip.nope : clip.head_dim) = 2;
  return clip;
}

}  // namespace

// Returns settings that have no effect because of another setting, values out of range, and invalid
// meshes.
std::vector<BadCase> setting_cases() {
  using A = Arguments;
  return {
      {{"group 0", "6 steps", "you_jiacheng"},
       [](A& a) {
         a.groups[0].coefficients = MUONRT_COEFFICIENTS_YOU_JIACHENG;
         a.groups[0].steps = 6;
       }},
      {{"group 0", "keller_jordan", "not generated"},
       [](A& a) {
         a.groups[0].coefficients = MUONRT_COEFFICIENTS_KELLER_JORDAN;
         a.groups[0].safety_mode = MUONRT_SAFETY_INNER;
       }},
      {{"group 0", "headroom"},
       [](A& a) {
         a.groups[0].safety = 1;
         a.groups[0].iteration_dtype = MUONRT_DTYPE_BF16;
       }},
      {{"group 0", "restarts are [2, 5]", "steps is 5"},
       [](A& a) {
         static const int32_t restarts[] = {2, 5};
         a.groups[0].gram_restarts = restarts;
         a.groups[0].n_gram_restarts = 2;
       }},
      // These bounds are literals. The bounds in bad_fields.cpp come from the table under test, so
      // a wrong bound in the table would not be found there.
      {{"group 0", "block_period is 0"}, [](A& a) { a.groups[0].block_period = 0; }},
      {{"group 0", "block_cols is 0"}, [](A& a) { a.groups[0].block_cols = 0; }},
      {{"group 0", "lr_factor is -1"}, [](A& a) { a.groups[0].lr_factor = -1; }},
      {{"group 0", "steps is 33"}, [](A& a) { a.groups[0].steps = 33; }},
      {{"group 1", "update_every is 0"}, [](A& a) { a.groups[1].update_every = 0; }},
      {{"options: timeout_ms is 0, but must be between 1 and 31622400000"},
       [](A& a) { a.options.timeout_ms = 0; }},
      {{"options: window is 0"}, [](A& a) { a.tuning.window = 0; }},
      {{"options: window is 65"}, [](A& a) { a.tuning.window = 65; }},
      {{"n_gram_restarts is 2", "NULL"}, [](A& a) { a.groups[0].n_gram_restarts = 2; }},
      {{"param 'wk'", "transposed is 7"}, [](A& a) { a.params[1].transposed = 7; }},
      {{"param 'wk'", "batch_dims is -1"}, [](A& a) { a.params[1].batch_dims = -1; }},
      {{"param 'wk'", "row_dims is 2147483647"}, [](A& a) { a.params[1].row_dims = INT32_MAX; }},
      {{"param 'wk'", "batch_dims is 1 and row_dims 1", "shape is [9, 5]"},
       [](A& a) { a.params[1].batch_dims = 1; }},
      {{"param 'wk'", "view is 2", "batch_dims is 0, row_dims 1"},
       [](A& a) {
         a.params[1].view = MUONRT_VIEW_FLATTEN;
         a.params[1].row_dims = 1;
       }},
      {{"group 0", "custom is set, but coefficients is 0", "MUONRT_COEFFICIENTS_CUSTOM"},
       [](A& a) { a.groups[0].custom = a.custom; }},
      {{"group 0", "restarts", "MUONRT_FORM_STANDARD"},
       [](A& a) {
         static const int32_t restarts[1] = {2};
         a.groups[0].form = MUONRT_FORM_STANDARD;
         a.groups[0].gram_restarts = restarts;
         a.groups[0].n_gram_restarts = 1;
       }},
      {{"param 'wq'", "qk_clip: rope is 4, but 'q' has none"},
       [](A& a) {
         static muonrt_qk_clip_t clip = clip_of(MUONRT_QK_QUERY);
         clip.rope = 4;
         a.params[0].qk_clip = &clip;
       }},
      {{"param 'wq'", "qk_clip: head_dim is 2, but 'mla_q' has none"},
       [](A& a) {
         static muonrt_qk_clip_t clip = clip_of(MUONRT_QK_MLA_QUERY);
         clip.head_dim = 2;
         a.params[0].qk_clip = &clip;
       }},
      {{"options: struct_size is 100000", "to 65536"},
       [](A& a) { a.options.struct_size = 100000; }},
      {{"options: tuning: struct_size is 0"}, [](A& a) { a.tuning.struct_size = 0; }},
      {{"options: debug: struct_size is 0"}, [](A& a) { a.debug.struct_size = 0; }},
      {{"omit_inactive is 2"}, [](A& a) { a.tuning.omit_inactive = 2; }},
      {{"options: debug: reserved is 1"}, [](A& a) { a.debug.reserved = 1; }},
      {{"param 'wq': mesh [3, 0]", "size 0"}, [](A& a) { a.mesh_shape[1] = 0; }},
      {{"param 'wq': mesh: two dims are named 'fsdp'"}, [](A& a) { a.mesh_names[1] = "fsdp"; }},
      {{"param 'wq': mesh: rank -1 at position 1"},
       [](A& a) {
         a.mesh_ranks[1] = -1;
         a.mesh.ranks = a.mesh_ranks;
       }},
      {{"param 'wq': mesh: rank 1 occurs at positions 1 and 2"},
       [](A& a) {
         a.mesh_ranks[2] = 1;
         a.mesh.ranks = a.mesh_ranks;
       }},
  };
}

}  // namespace bad_input
