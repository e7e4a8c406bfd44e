#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "muonrt/muonrt.h"

/// Invalid inputs at the C ABI. One of three ranks passes invalid arguments, and all ranks must
/// return the same error.
namespace bad_input {

constexpr int kRanks = 3;
constexpr int64_t kDeadlineMs = 5000;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The arguments that a rank uses to create an optimizer and to run a step. A case changes the
/// arguments of one rank.
struct Arguments {
  int64_t mesh_shape[2] = {kRanks, 1};
  const char* mesh_names[2] = {"fsdp", "rest"};
  int32_t mesh_ranks[kRanks] = {0, 1, 2};
  muonrt_mesh_t mesh;
  muonrt_placement_t rows[2] = {{MUONRT_PLACEMENT_SHARD, 0, 0}, {MUONRT_PLACEMENT_REPLICATE, 0, 0}};
  muonrt_layout_t layout;
  int64_t shapes[3][2] = {{6, 4}, {9, 5}, {7, 0}};
  int64_t local[3][2] = {{2, 4}, {3, 5}, {0, 0}};
  std::vector<float> data[3], grad[3];
  int64_t strides[2] = {4, 1};
  double custom[15];
  muonrt_optimizer_options_t options;
  muonrt_tuning_options_t tuning;
  muonrt_debug_options_t debug;
  struct Padded {  // a group with more fields, as a newer header might declare it
    muonrt_group_t group;
    uint64_t tail[2];
  } padded;
  muonrt_group_t groups[2];
  muonrt_param_t params[3];
  int32_t n_groups = 2;
  int64_t n_params = 3;
  const muonrt_optimizer_options_t* options_given = &options;
  const muonrt_group_t* groups_given = groups;
  const muonrt_param_t* params_given = params;
  bool out_given = true;
  muonrt_step_args_t args;
  int64_t inactive[1] = {0};
  double rates[2] = {0.01, 0.01};
  const muonrt_step_args_t* args_given = &args;
  muonrt_step_report_t report;
  const void* grad_of_1 = nullptr;
  bool rebind = false;

  explicit Arguments(int rank) {
    muonrt_mesh_init(&mesh);
    mesh.ndim = 2;
    mesh.shape = mesh_shape;
    mesh.names = mesh_names;
    muonrt_layout_init(&layout);
    layout.mesh = &mesh;
    layout.placements = rows;
    muonrt_optimizer_options_init(&options);
    muonrt_tuning_options_init(&tuning);
    muonrt_debug_options_init(&debug);
    options.tuning = &tuning;
    options.debug = &debug;
    muonrt_group_init_muon(&groups[0]);
    groups[0].name = "matrices";
    muonrt_group_init_adamw(&groups[1]);
    groups[1].name = "rest";
    local[2][0] = rank < 2 ? 3 : 1;
    static const char* names[3] = {"wq", "wk", "bias"};
    for (int i = 0; i < 3; ++i) {
      const int64_t numel = i < 2 ? local[i][0] * local[i][1] : local[i][0];
      data[i].resize(static_cast<size_t>(numel));
      grad[i].resize(static_cast<size_t>(numel), 0.5f);
      for (size_t e = 0; e < data[i].size(); ++e) data[i][e] = static_cast<float>(e + 1) / 8;
      muonrt_param_init(&params[i]);
      params[i].name = names[i];
      params[i].group = i < 2 ? 0 : 1;
      params[i].ndim = i < 2 ? 2 : 1;
      params[i].shape = shapes[i];
      params[i].local_shape = local[i];
      params[i].layout = &layout;
      params[i].data = data[i].data();
      params[i].grad = grad[i].data();
    }
    grad_of_1 = grad[1].data();
    for (int i = 0; i < 5; ++i) {
      custom[3 * i] = 1.875;
      custom[3 * i + 1] = -1.25;
      custom[3 * i + 2] = 0.375;
    }
    muonrt_step_args_init(&args);
    args.lr = 0.01;
    muonrt_step_report_init(&report);
  }
};

constexpr muonrt_status_t kInvalid = MUONRT_ERROR_INVALID_ARGUMENT,
                          kMismatch = MUONRT_ERROR_MISMATCH;

struct BadCase {
  std::vector<std::string> texts;  // texts that the message must contain
  std::function<void(Arguments&)> change;
  muonrt_status_t status = kInvalid;
};

/// Returns cases for the creation of an optimizer with wrong structs, names, buffers or layouts.
std::vector<BadCase> create_cases();
/// Returns cases for the creation of an optimizer with invalid settings or meshes.
std::vector<BadCase> setting_cases();
/// Returns cases for the creation of an optimizer. Each case sets one field in fields.hpp to a
/// value that the field's rule rejects.
std::vector<BadCase> field_cases();
/// Returns the fields without a case, because their rules reject no value.
std::vector<std::string> unchecked_fields();
/// Returns cases for a step.
std::vector<BadCase> step_cases();

}  // namespace bad_input
