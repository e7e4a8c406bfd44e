#include "support/bad_input.hpp"

namespace bad_input {

std::vector<BadCase> create_cases() {
  using A = Arguments;
  std::vector<BadCase> c = {
      {"null out pointer", kInvalid, {"optimizer is null"}, [](A& a) { a.out_given = false; }},
      {"null groups", kInvalid, {"n_groups is 2", "null"}, [](A& a) { a.groups_given = nullptr; }},
      {"null params", kInvalid, {"n_params is 3", "null"}, [](A& a) { a.params_given = nullptr; }},
      {"no groups", kInvalid, {"n_groups is 0"}, [](A& a) { a.n_groups = 0; }},
      {"negative params", kInvalid, {"n_params is -1"}, [](A& a) { a.n_params = -1; }},
      {"null name",
       kInvalid,
       {"param 1", "name is null"},
       [](A& a) { a.params[1].name = nullptr; }},
      {"empty name", kInvalid, {"param 1", "name is empty"}, [](A& a) { a.params[1].name = ""; }},
      {"control character",
       kInvalid,
       {"param 0", "control"},
       [](A& a) { a.params[0].name = "w\n"; }},
      {"name twice", kInvalid, {"param 'wq'", "twice"}, [](A& a) { a.params[1].name = "wq"; }},
      {"null shape",
       kInvalid,
       {"param 'wk'", "shape is null"},
       [](A& a) { a.params[1].shape = nullptr; }},
      {"null data",
       kInvalid,
       {"param 'wk'", "data is null"},
       [](A& a) { a.params[1].data = nullptr; }},
      {"options size 0",
       kInvalid,
       {"options", "struct_size is 0"},
       [](A& a) { a.options.struct_size = 0; }},
      {"group that ends inside a pointer",
       kInvalid,
       {"group 0", "struct_size is 12"},
       [](A& a) { a.groups[0].struct_size = 12; }},
      {"param that ends early",
       kInvalid,
       {"param 0", "struct_size is 28"},
       [](A& a) {
         for (auto& p : a.params) p.struct_size = 28;
       }},
      {"timeout beyond a year",
       kInvalid,
       {"timeout_ms"},
       [](A& a) { a.options.timeout_ms = int64_t{1} << 40; }},
      {"beta2 that is 1 in f32",
       kInvalid,
       {"group 1", "beta2"},
       [](A& a) { a.groups[1].beta2 = 0.99999999; }},
      {"eps that vanishes in f32",
       kInvalid,
       {"group 1", "eps"},
       [](A& a) { a.groups[1].eps = 1e-50; }},
      {"huge custom coefficient",
       kInvalid,
       {"group 0", "custom"},
       [](A& a) {
         a.custom[0] = 1e200;
         a.groups[0].custom = a.custom;
         a.groups[0].coefficients = MUONRT_COEFFICIENTS_CUSTOM;
       }},
      {"mesh name with a newline",
       kInvalid,
       {"mesh name", "control"},
       [](A& a) { a.mesh_names[0] = "x\ny"; }},
      {"options size 3",
       kInvalid,
       {"options", "struct_size is 3"},
       [](A& a) { a.options.struct_size = 3; }},
      {"group size 1",
       kInvalid,
       {"group 0", "struct_size is 1"},
       [](A& a) { a.groups[0].struct_size = 1; }},
      {"param size odd",
       kInvalid,
       {"param 0", "struct_size is 9"},
       [](A& a) { a.params[0].struct_size = 9; }},
      {"param sizes differ",
       kInvalid,
       {"param 2", "struct_size is 16"},
       [](A& a) { a.params[2].struct_size = 16; }},
      {"layout size 0",
       kInvalid,
       {"param 'wq'", "layout", "struct_size is 0"},
       [](A& a) { a.layout.struct_size = 0; }},
      {"mesh size 0", kInvalid, {"mesh", "struct_size is 0"}, [](A& a) { a.mesh.struct_size = 0; }},
      {"newer group with its tail set",
       kInvalid,
       {"group 0", "byte", "newer"},
       [](A& a) {
         a.padded.group = a.groups[0];
         a.padded.group.struct_size = sizeof a.padded;
         a.padded.tail[0] = 0;
         a.padded.tail[1] = 7;
         a.groups_given = &a.padded.group;
         a.n_groups = 1;
       }},
      {"unknown dtype",
       kInvalid,
       {"param 'wq'", "dtype is 77"},
       [](A& a) { a.params[0].dtype = 77; }},
      {"unknown grad dtype",
       kInvalid,
       {"param 'wq'", "grad_dtype is -2"},
       [](A& a) { a.params[0].grad_dtype = -2; }},
      {"f16 parameter",
       kInvalid,
       {"param 'wq'", "f16"},
       [](A& a) { a.params[0].dtype = MUONRT_DTYPE_F16; }},
      {"unknown role", kInvalid, {"group 1", "role is 9"}, [](A& a) { a.groups[1].role = 9; }},
      {"unknown coefficients",
       kInvalid,
       {"group 0", "coefficients is 55"},
       [](A& a) { a.groups[0].coefficients = 55; }},
      {"unknown scale rule",
       kInvalid,
       {"scale_rule is 12"},
       [](A& a) { a.groups[0].scale_rule = 12; }},
      {"unknown momentum kind",
       kInvalid,
       {"momentum_kind is 2"},
       [](A& a) { a.groups[0].momentum_kind = 2; }},
      {"unknown form", kInvalid, {"form is -1"}, [](A& a) { a.groups[0].form = -1; }},
      {"nesterov 2", kInvalid, {"nesterov is 2"}, [](A& a) { a.groups[0].nesterov = 2; }},
      {"unknown commit", kInvalid, {"commit is 5"}, [](A& a) { a.options.commit = 5; }},
      {"unknown device", kInvalid, {"device is 8"}, [](A& a) { a.options.device = 8; }},
      {"no GPU",
       MUONRT_ERROR_NOT_SUPPORTED,
       {"CUDA"},
       [](A& a) { a.options.device = MUONRT_DEVICE_CUDA; }},
      {"unknown reading", kInvalid, {"reading 4"}, [](A& a) { a.layout.reading = 4; }},
      {"unknown placement", kInvalid, {"placement 0", "kind 6"}, [](A& a) { a.rows[0].kind = 6; }},
      {"NaN momentum",
       kInvalid,
       {"group 0", "momentum is nan"},
       [](A& a) { a.groups[0].momentum = kNan; }},
      {"NaN weight decay",
       kInvalid,
       {"weight_decay is nan"},
       [](A& a) { a.groups[0].weight_decay = kNan; }},
      {"NaN eps", kInvalid, {"group 1", "eps is nan"}, [](A& a) { a.groups[1].eps = kNan; }},
      {"NaN safety", kInvalid, {"safety is nan"}, [](A& a) { a.groups[0].safety = kNan; }},
      {"momentum 1", kInvalid, {"momentum is 1"}, [](A& a) { a.groups[0].momentum = 1.0; }},
      {"negative lr factor",
       kInvalid,
       {"lr_factor is -1"},
       [](A& a) { a.groups[0].lr_factor = -1; }},
      {"beta2 above 1", kInvalid, {"beta2 is 1.5"}, [](A& a) { a.groups[1].beta2 = 1.5; }},
      {"negative steps", kInvalid, {"steps is -1"}, [](A& a) { a.groups[0].steps = -1; }},
      {"too many steps", kInvalid, {"steps is 1000"}, [](A& a) { a.groups[0].steps = 1000; }},
      {"custom without a list",
       kInvalid,
       {"custom"},
       [](A& a) { a.groups[0].coefficients = MUONRT_COEFFICIENTS_CUSTOM; }},
      {"custom with a NaN",
       kInvalid,
       {"group 0"},
       [](A& a) {
         a.custom[4] = kNan;
         a.groups[0].custom = a.custom;
         a.groups[0].coefficients = MUONRT_COEFFICIENTS_CUSTOM;
       }},
      {"window 0", kInvalid, {"window is 0"}, [](A& a) { a.options.window = 0; }},
      {"threads -1", kInvalid, {"threads is -1"}, [](A& a) { a.options.threads = -1; }},
      {"a GPU's number on the host",
       kInvalid,
       {"device_index is 1"},
       [](A& a) { a.options.device_index = 1; }},
      {"reserved field",
       kInvalid,
       {"param 1", "reserved is 7"},
       [](A& a) { a.params[1].reserved = 7; }},
      {"timeout 0", kInvalid, {"timeout_ms is 0"}, [](A& a) { a.options.timeout_ms = 0; }},
      {"negative chunk", kInvalid, {"chunk_bytes is -5"}, [](A& a) { a.options.chunk_bytes = -5; }},
      {"negative interval",
       kInvalid,
       {"health_every is -2"},
       [](A& a) { a.options.health_every = -2; }},
      {"negative size", kInvalid, {"param 'wq'", "[-6, 4]"}, [](A& a) { a.shapes[0][0] = -6; }},
      {"overflowing size",
       kInvalid,
       {"param 'wq'"},
       [](A& a) { a.shapes[0][0] = a.shapes[0][1] = int64_t{1} << 62; }},
      {"empty matrix",
       kInvalid,
       {"param 'wq'", "[0, 4]"},
       [](A& a) {
         a.shapes[0][0] = 0;
         a.local[0][0] = 0;
       }},
      {"ndim 9", kInvalid, {"param 'wq'", "ndim is 9"}, [](A& a) { a.params[0].ndim = 9; }},
      {"vector for Muon", kInvalid, {"param 'bias'", "AdamW"}, [](A& a) { a.params[2].group = 0; }},
      {"unknown group",
       kInvalid,
       {"param 'wk'", "group is 2"},
       [](A& a) { a.params[1].group = 2; }},
      {"wrong local shape",
       kInvalid,
       {"param 'wk'", "local_shape is [4, 5]", "[3, 5]"},
       [](A& a) { a.local[1][0] = 4; }},
      {"unknown tensor dim", kInvalid, {"param 'wq'"}, [](A& a) { a.rows[0].dim = 5; }},
      {"split factor of a plain shard",
       kInvalid,
       {"split_factor 3"},
       [](A& a) { a.rows[0].split_factor = 3; }},
      {"mesh of other size", kInvalid, {"mesh"}, [](A& a) { a.mesh_shape[0] = 4; }},
      {"mesh rank outside",
       kInvalid,
       {"rank 5"},
       [](A& a) {
         a.mesh_ranks[2] = 5;
         a.mesh.ranks = a.mesh_ranks;
       }},
      {"mesh rank twice",
       kInvalid,
       {"mesh"},
       [](A& a) {
         a.mesh_ranks[2] = 1;
         a.mesh.ranks = a.mesh_ranks;
       }},
      {"null mesh shape", kInvalid, {"mesh", "null"}, [](A& a) { a.mesh.shape = nullptr; }},
      {"placements and cuts",
       kInvalid,
       {"both placements and cuts"},
       [](A& a) { a.layout.n_cuts = 1; }},
      {"unknown mesh dim in flat_dims",
       kInvalid,
       {"param 'wq'"},
       [](A& a) {
         static const int32_t dims[1] = {7};
         a.layout.reading = MUONRT_READING_ORDERED;
         a.layout.flat_dims = dims;
         a.layout.n_flat_dims = 1;
       }},
      {"owner outside",
       kInvalid,
       {"param 'wq'", "owner is 3"},
       [](A& a) { a.params[0].owner = 3; }},
      {"parameters overlap",
       kInvalid,
       {"param 'wk'", "overlaps", "'wq'"},
       [](A& a) {
         a.data[0].resize(64);
         a.params[0].data = a.data[0].data();
         a.params[1].data = a.data[0].data() + 4;
       }},
      {"gradient overlaps its parameter",
       kInvalid,
       {"overlaps", "param 'wq'"},
       [](A& a) { a.params[0].grad = a.params[0].data; }},
      {"misaligned data",
       kInvalid,
       {"param 'wq'", "misaligned"},
       [](A& a) { a.params[0].data = reinterpret_cast<char*>(a.params[0].data) + 1; }},
      {"master without its kind",
       kInvalid,
       {"param 'wq'", "master"},
       [](A& a) { a.params[0].master = a.grad[0].data(); }},
      {"master missing",
       kInvalid,
       {"param 'wq'", "master is null"},
       [](A& a) { a.params[0].master_kind = MUONRT_MASTER_CALLER; }},
      // Ranks that disagree, each by itself in order.
      {"other order",
       kMismatch,
       {"name of param 0", "'wq'", "'wk'"},
       [](A& a) { std::swap(a.params[0], a.params[1]); }},
      {"other shape",
       kMismatch,
       {"param 'wk'", "shape", "[9, 5]", "[8, 5]"},
       [](A& a) {
         a.shapes[1][0] = 8;
         a.params[1].local_shape = nullptr;
       }},
      {"other dtype",
       kMismatch,
       {"param 'wk'", "dtype", "f32", "bf16"},
       [](A& a) { a.params[1].dtype = MUONRT_DTYPE_BF16; }},
      {"other layout",
       kMismatch,
       {"param 'wq'", "layout"},
       [](A& a) {
         a.rows[0].kind = MUONRT_PLACEMENT_REPLICATE;
         for (auto& d : a.data) d.resize(64);
         for (auto& g : a.grad) g.resize(64);
         for (int i = 0; i < 3; ++i) {
           a.params[i].data = a.data[i].data();
           a.params[i].grad = a.grad[i].data();
           a.params[i].local_shape = nullptr;
         }
       }},
      {"other window", kMismatch, {"window", "3", "4"}, [](A& a) { a.options.window = 4; }},
      {"other interval",
       kMismatch,
       {"health_every", "0", "5"},
       [](A& a) { a.options.health_every = 5; }},
      {"other transport",
       kMismatch,
       {"transport_dtype", "bf16", "f32"},
       [](A& a) { a.options.transport_dtype = MUONRT_DTYPE_F32; }},
      {"other number of parameters",
       kMismatch,
       {"number of parameters", "3", "2"},
       [](A& a) { a.n_params = 2; }},
      {"other momentum",
       kMismatch,
       {"group 0", "momentum", "0.95", "0.9"},
       [](A& a) { a.groups[0].momentum = 0.9; }},
      {"other owner",
       kMismatch,
       {"param 'wq'", "owner", "-1", "2"},
       [](A& a) { a.params[0].owner = 2; }},
      {"other commit",
       kMismatch,
       {"commit", "atomic", "eager"},
       [](A& a) { a.options.commit = MUONRT_COMMIT_EAGER; }},
  };
  return c;
}

std::vector<BadCase> step_cases() {
  using A = Arguments;
  return {
      {"null step", kInvalid, {"step is null"}, [](A& a) { a.step_given = nullptr; }, true},
      {"step size 0",
       kInvalid,
       {"step", "struct_size is 0"},
       [](A& a) { a.step.struct_size = 0; },
       true},
      {"report size 2",
       kInvalid,
       {"report", "struct_size is 2"},
       [](A& a) { a.report.struct_size = 2; },
       true},
      {"lr not set", kInvalid, {"lr is nan"}, [](A& a) { a.step.lr = kNan; }, true},
      {"negative lr", kInvalid, {"lr is -0.5"}, [](A& a) { a.step.lr = -0.5; }, true},
      {"infinite lr", kInvalid, {"lr is inf"}, [](A& a) { a.step.lr = HUGE_VAL; }, true},
      {"lr beyond f32", kInvalid, {"lr", "1e+39"}, [](A& a) { a.step.lr = 1e39; }, true},
      {"gradient scale that vanishes",
       kInvalid,
       {"grad_scale_inv"},
       [](A& a) { a.step.grad_scale_inv = 1e-50; },
       true},
      {"absurd length of the list",
       kInvalid,
       {"n_without_grad"},
       [](A& a) {
         a.step.without_grad = a.without;
         a.step.n_without_grad = int64_t{1} << 58;
       },
       true},
      {"gradient scale 0",
       kInvalid,
       {"grad_scale_inv is 0"},
       [](A& a) { a.step.grad_scale_inv = 0; },
       true},
      {"null list",
       kInvalid,
       {"n_without_grad is 2"},
       [](A& a) { a.step.n_without_grad = 2; },
       true},
      {"unknown parameter in the list",
       kInvalid,
       {"param index is 3"},
       [](A& a) {
         a.without[0] = 3;
         a.step.without_grad = a.without;
         a.step.n_without_grad = 1;
       },
       true},
      {"null gradient that was not announced",
       kInvalid,
       {"param 'wk'", "grad is null"},
       [](A& a) {
         a.rebind = true;
         a.grad_of_1 = nullptr;
       },
       true},
      {"a stream on the host",
       kInvalid,
       {"stream is given on the host"},
       [](A& a) { a.step.stream = a.without; },
       true},
      {"other lr", kMismatch, {"lr", "0.01", "0.02"}, [](A& a) { a.step.lr = 0.02; }, true},
      {"announced on one rank alone",
       kMismatch,
       {"param 'wq'", "takes part", "1", "0"},
       [](A& a) {
         a.without[0] = 0;
         a.step.without_grad = a.without;
         a.step.n_without_grad = 1;
       },
       true},
  };
}

}  // namespace bad_input
