#include "support/faults/bad_input.hpp"

namespace bad_input {

std::vector<BadCase> create_cases() {
  using A = Arguments;
  return {
      {{"optimizer is NULL"}, [](A& a) { a.out_given = false; }},
      {{"n_groups is 2", "NULL"}, [](A& a) { a.groups_given = nullptr; }},
      {{"n_params is 3", "NULL"}, [](A& a) { a.params_given = nullptr; }},
      {{"n_groups is 0"}, [](A& a) { a.n_groups = 0; }},
      {{"n_params is -1"}, [](A& a) { a.n_params = -1; }},
      {{"param 1", "name is NULL"}, [](A& a) { a.params[1].name = nullptr; }},
      {{"param 1", "name is empty"}, [](A& a) { a.params[1].name = ""; }},
      {{"param 0", "control"}, [](A& a) { a.params[0].name = "w\n"; }},
      {{"param 'wq'", "twice"}, [](A& a) { a.params[1].name = "wq"; }},
      {{"param 'wk'", "shape is NULL"}, [](A& a) { a.params[1].shape = nullptr; }},
      {{"param 'wk'", "data is NULL"}, [](A& a) { a.params[1].data = nullptr; }},
      {{"options", "struct_size is 0"}, [](A& a) { a.options.struct_size = 0; }},
      {{"group 0", "struct_size is 12"}, [](A& a) { a.groups[0].struct_size = 12; }},
      {{"param 0", "struct_size is 28"},
       [](A& a) {
         for (auto& p : a.params) p.struct_size = 28;
       }},
      {{"group 1", "eps"}, [](A& a) { a.groups[1].adamw_eps = 1e-50; }},
      {{"group 0", "custom"},
       [](A& a) {
         a.custom[0] = 1e200;
         a.groups[0].custom = a.custom;
         a.groups[0].coefficients = MUONRT_COEFFICIENTS_CUSTOM;
       }},
      {{"mesh name", "control"}, [](A& a) { a.mesh_names[0] = "x\ny"; }},
      {{"options", "struct_size is 3"}, [](A& a) { a.options.struct_size = 3; }},
      {{"group 0", "struct_size is 1"}, [](A& a) { a.groups[0].struct_size = 1; }},
      {{"param 0", "struct_size is 9"}, [](A& a) { a.params[0].struct_size = 9; }},
      {{"param 2", "struct_size is 16"}, [](A& a) { a.params[2].struct_size = 16; }},
      {{"param 'wq'", "layout", "struct_size is 0"}, [](A& a) { a.layout.struct_size = 0; }},
      {{"mesh", "struct_size is 0"}, [](A& a) { a.mesh.struct_size = 0; }},
      {{"group 0", "byte", "newer"},
       [](A& a) {
         a.padded.group = a.groups[0];
         a.padded.group.struct_size = sizeof a.padded;
         a.padded.tail[0] = 0;
         a.padded.tail[1] = 7;
         a.groups_given = &a.padded.group;
         a.n_groups = 1;
       }},
      {{"param 'wq'", "dtype is 77"}, [](A& a) { a.params[0].dtype = 77; }},
      {{"param 'wq'", "grad_dtype is -2"}, [](A& a) { a.params[0].grad_dtype = -2; }},
      {{"param 'wq'", "f16"}, [](A& a) { a.params[0].dtype = MUONRT_DTYPE_F16; }},
      {{"device is 8"}, [](A& a) { a.options.device = 8; }},
      {{"CUDA"}, [](A& a) { a.options.device = MUONRT_DEVICE_CUDA; }, MUONRT_ERROR_NOT_SUPPORTED},
      {{"reading 4"}, [](A& a) { a.layout.reading = 4; }},
      {{"placement 0", "kind 6"}, [](A& a) { a.rows[0].kind = 6; }},
      {{"custom"}, [](A& a) { a.groups[0].coefficients = MUONRT_COEFFICIENTS_CUSTOM; }},
      {{"group 0"},
       [](A& a) {
         a.custom[4] = kNan;
         a.groups[0].custom = a.custom;
         a.groups[0].coefficients = MUONRT_COEFFICIENTS_CUSTOM;
       }},
      {{"device_index is 1"}, [](A& a) { a.options.device_index = 1; }},
      {{"param 'wq'", "[-6, 4]"}, [](A& a) { a.shapes[0][0] = -6; }},
      {{"param 'wq'"}, [](A& a) { a.shapes[0][0] = a.shapes[0][1] = int64_t{1} << 62; }},
      {{"param 'wq'", "[0, 4]"},
       [](A& a) {
         a.shapes[0][0] = 0;
         a.local[0][0] = 0;
       }},
      {{"param 'wq'", "ndim is 9"}, [](A& a) { a.params[0].ndim = 9; }},
      {{"param 'bias'", "AdamW"}, [](A& a) { a.params[2].group = 0; }},
      {{"param 'wk'", "group is 2"}, [](A& a) { a.params[1].group = 2; }},
      {{"param 'wk'", "local_shape is [4, 5]", "[3, 5]"}, [](A& a) { a.local[1][0] = 4; }},
      {{"param 'wq'", "strides is [5, 1]", "[2, 4]", "dimension 0 needs 4"},
       [](A& a) {
         a.strides[0] = 5;
         a.params[0].strides = a.strides;
       }},
      {{"param 'wq'", "grad_strides is [1, 2]", "dimension 1 needs 1"},
       [](A& a) {
         a.strides[0] = 1;
         a.strides[1] = 2;
         a.params[0].grad_strides = a.strides;
       }},
      {{"param 'wq'"}, [](A& a) { a.rows[0].dim = 5; }},
      {{"split_factor 3"}, [](A& a) { a.rows[0].split_factor = 3; }},
      {{"mesh"}, [](A& a) { a.mesh_shape[0] = 4; }},
      {{"rank 5"},
       [](A& a) {
         a.mesh_ranks[2] = 5;
         a.mesh.ranks = a.mesh_ranks;
       }},
      {{"mesh", "shape of the mesh is NULL"}, [](A& a) { a.mesh.shape = nullptr; }},
      {{"both placements and cuts"}, [](A& a) { a.layout.n_cuts = 1; }},
      {{"param 'wq'"},
       [](A& a) {
         static const int32_t dims[1] = {7};
         a.layout.reading = MUONRT_READING_ORDERED;
         a.layout.flat_dims = dims;
         a.layout.n_flat_dims = 1;
       }},
      {{"param 'wq'", "owner is 3"}, [](A& a) { a.params[0].owner = 3; }},
      {{"param 'wk'", "overlaps", "'wq'"},
       [](A& a) {
         a.data[0].resize(64);
         a.params[0].data = a.data[0].data();
         a.params[1].data = a.data[0].data() + 4;
       }},
      {{"overlaps", "param 'wq'"}, [](A& a) { a.params[0].grad = a.params[0].data; }},
      {{"param 'wq'", "misaligned"},
       [](A& a) { a.params[0].data = reinterpret_cast<char*>(a.params[0].data) + 1; }},
      {{"param 'wq'", "master"}, [](A& a) { a.params[0].master = a.grad[0].data(); }},
      {{"param 'wq'", "master is NULL"},
       [](A& a) { a.params[0].master_kind = MUONRT_MASTER_CALLER; }},
      // These values are valid, but differ from those of the other ranks.
      {{"name of param 0", "'wq'", "'wk'"},
       [](A& a) { std::swap(a.params[0], a.params[1]); },
       kMismatch},
      {{"param 'wk'", "shape", "[9, 5]", "[8, 5]"},
       [](A& a) {
         a.shapes[1][0] = 8;
         a.params[1].local_shape = nullptr;
       },
       kMismatch},
      {{"param 'wk'", "dtype", "f32", "bf16"},
       [](A& a) { a.params[1].dtype = MUONRT_DTYPE_BF16; },
       kMismatch},
      {{"param 'wq'", "layout"},
       [](A& a) {
         a.rows[0].kind = MUONRT_PLACEMENT_REPLICATE;
         for (auto& d : a.data) d.resize(64);
         for (auto& g : a.grad) g.resize(64);
         for (int i = 0; i < 3; ++i) {
           a.params[i].data = a.data[i].data();
           a.params[i].grad = a.grad[i].data();
           a.params[i].local_shape = nullptr;
         }
       },
       kMismatch},
      {{"window", "3", "4"}, [](A& a) { a.tuning.window = 4; }, kMismatch},
      {{"health_every", "0", "5"}, [](A& a) { a.debug.health_every = 5; }, kMismatch},
      {{"replica_check", "first", "off"},
       [](A& a) { a.debug.replica_check = MUONRT_REPLICA_CHECK_OFF; },
       kMismatch},
      {{"transport_dtype", "bf16", "f32"},
       [](A& a) { a.tuning.transport_dtype = MUONRT_DTYPE_F32; },
       kMismatch},
      {{"number of parameters", "3", "2"}, [](A& a) { a.n_params = 2; }, kMismatch},
      {{"group 0", "momentum", "0.95", "0.9"}, [](A& a) { a.groups[0].momentum = 0.9; }, kMismatch},
      {{"param 'wq'", "owner", "-1", "2"}, [](A& a) { a.params[0].owner = 2; }, kMismatch},
      {{"commit", "atomic", "eager"},
       [](A& a) { a.tuning.commit = MUONRT_COMMIT_EAGER; },
       kMismatch},
  };
}

}  // namespace bad_input
