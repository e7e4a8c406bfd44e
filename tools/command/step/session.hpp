#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command/plan/rank_memory.hpp"
#include "command/run_device.hpp"
#include "command/step/tensors.hpp"
#include "muonrt/muonrt.hpp"
#include "opt_json/bind.hpp"

namespace muonrt::tool {

/// One rank's shards of the parameters and their gradients, and the optimizer that updates them.
class StepSession {
 public:
  /// Reads and checks all files. Throws if the files do not fit together. Collective.
  /// @param grads  the gradient files.
  /// @param allow_missing  whether the gradient of a parameter may be missing from a file. The
  ///     parameter is then inactive in this step.
  StepSession(Comm& comm, const StepConfig& config, const TensorModel& params,
              std::vector<StepTensor>& tensors,
              const std::vector<std::unique_ptr<TensorModel>>& grads, bool allow_missing,
              const RunDevice& where);

  /// Runs one step with the gradients of this file. Collective.
  /// @param logits  the logits for QK-clip, from read_logits.
  muonrt_step_report_t step(const TensorModel& grads, const std::vector<float>& logits);

  bool empty() const { return params_.empty(); }
  Optimizer& optimizer() { return *optimizer_; }
  /// Returns the names of the parameters that were inactive in the last step, because they had no
  /// gradient.
  std::vector<std::string> inactive() const;
  /// Returns the local shard in the dtype of the file. The pointer is valid until the next call for
  /// the same parameter. Throws if the dtype is F16 and a value exceeds its range.
  const void* data(const StepTensor& tensor);
  /// Loads a checkpoint. Collective. Throws if its parameters differ from the parameters in the
  /// file.
  void load(const std::string& folder, const TensorModel& params, bool partial);

 private:
  struct Local {
    const StepTensor* tensor = nullptr;
    std::vector<Stretch> grad_stretches;
    std::string grad_dtype;  // dtype of the gradient buffer: F32 or BF16
    unsigned char *data = nullptr, *grad = nullptr;
    std::vector<unsigned char> rounded;  // the data rounded to F16, if the file has F16
    std::vector<muonrt_part_t> parts;
  };
  void check_gradients(const std::vector<std::unique_ptr<TensorModel>>& grads, bool allow_missing);
  void take_param(const TensorModel& params, Local& local);
  void make_optimizer(Comm& comm, const RunDevice& where);
  void load_gradient(const TensorModel& grads, Local& local);
  void set_groups(int64_t step);

  const StepConfig& config_;
  std::vector<StepTensor>& tensors_;
  int rank_;
  RankMemory memory_;
  std::vector<Local> locals_;
  std::vector<size_t> used_;      // indices of rules, ascending
  std::vector<BoundRule> rules_;  // the rules of `used_`
  std::vector<muonrt_param_t> params_;
  std::vector<int64_t> inactive_;  // the inactive parameters of the last step
  float* logits_ = nullptr;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace muonrt::tool
