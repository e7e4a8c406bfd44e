#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "muonrt/muonrt.h"

/// The table of bad inputs at the C ABI: what one rank of three passes wrongly, and what all must
/// say.
namespace bad_input {

constexpr int kRanks = 3;
constexpr int64_t kDeadlineMs = 5000;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// What a rank passes to create and step; a case changes it on one rank.
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
  struct Padded {  // a group or param from a newer header: more bytes behind
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
  muonrt_step_args_t step;
  int64_t without[1] = {0};
  double rates[2] = {0.01, 0.01};
  const muonrt_step_args_t* step_given = &step;
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
    muonrt_group_init(&groups[0], MUONRT_ROLE_MUON);
    groups[0].name = "matrices";
    muonrt_group_init(&groups[1], MUONRT_ROLE_ADAMW);
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
    muonrt_step_args_init(&step);
    step.lr = 0.01;
    muonrt_step_report_init(&report);
  }
};

constexpr muonrt_status_t kInvalid = MUONRT_ERROR_INVALID_ARGUMENT,
                          kMismatch = MUONRT_ERROR_MISMATCH;

struct BadCase {
  std::vector<std::string> says;  // all of these occur in the message
  std::function<void(Arguments&)> change;
  muonrt_status_t status = kInvalid;
};

/// At creation: structs, names, buffers and layouts; settings that do not go together.
std::vector<BadCase> create_cases();
std::vector<BadCase> setting_cases();
/// At creation: each plain setting with the values that its rule rejects (fields.hpp).
std::vector<BadCase> field_cases();
/// The plain settings without a case, because no rule rejects a value of them.
std::vector<std::string> unchecked_fields();
/// In a step.
std::vector<BadCase> step_cases();

}  // namespace bad_input
