#pragma once

#include <cstdint>

#include "host/dtype_dispatch.hpp"
#include "host/findings.hpp"
#include "host/row_passes.hpp"

namespace muonrt::host {

/// Number of elements that a commit processes at a time. Arrays with a dtype other than f32 are
/// converted in blocks of this size, which stay in the L1 cache.
constexpr int64_t kBlock = 512;

/// Returns elements [at, at + n) as f32. If the dtype of the array is f32, returns a pointer into
/// the array. Otherwise converts the elements into `copy` and returns `copy`.
inline const float* read_block(Isa isa, const void* data, DType dtype, int64_t at, int64_t n,
                               float* copy) {
  if (dtype == DType::kF32) return static_cast<const float*>(data) + at;
  run_pass<CastPass<bf16, float>>(isa, static_cast<const bf16*>(data) + at, copy, n);
  return copy;
}

/// Like read_block(), but for elements that the caller changes. If it returns `copy`, the caller
/// must write the elements back.
inline float* writable_block(Isa isa, void* data, DType dtype, int64_t at, int64_t n, float* copy) {
  if (dtype == DType::kF32) return static_cast<float*>(data) + at;
  run_pass<CastPass<bf16, float>>(isa, static_cast<const bf16*>(data) + at, copy, n);
  return copy;
}

/// The weights [at, at + n) of a parameter as f32. The caller first changes values(), and then
/// calls write().
class WeightBlock {
 public:
  WeightBlock(Isa isa, const ParamView& view, int64_t at, int64_t n)
      : isa_(isa), view_(&view), at_(at), n_(n), values_(copy_) {
    if (view.form == WeightForm::kMaster) {
      values_ = view.master + at;
    } else if (view.param_dtype == DType::kF32) {
      values_ = static_cast<float*>(view.param) + at;
    } else if (view.form == WeightForm::kRemainder) {
      run_pass<JoinPass>(isa, narrow(), view.remainder + at, copy_, n);
    } else {
      run_pass<CastPass<bf16, float>>(isa, narrow(), copy_, n);
    }
  }
  WeightBlock(const WeightBlock&) = delete;
  WeightBlock& operator=(const WeightBlock&) = delete;

  float* values() { return values_; }

  /// Stores the values in the parameter's WeightForm.
  /// @param element   index of the first element in the whole tensor. It selects the random bits.
  /// @param findings  records whether a value is non-finite in its stored dtype; may be null.
  void write(int64_t element, Findings* findings) const {
    const ParamView& v = *view_;
    uint32_t bad = 0;
    if (v.form == WeightForm::kRemainder) {
      bad = run_pass<SplitPass>(isa_, values_, narrow(), v.remainder + at_, n_);
    } else if (v.form == WeightForm::kStochastic) {
      run_pass<StochasticPass>(isa_, values_, narrow(), n_, v.seed, v.step, v.key, element);
      bad = run_pass<ScanPass<bf16, false>>(isa_, narrow(), 1.0f, n_);
    } else if (v.param_dtype == DType::kBF16) {
      bad = run_pass<CastPass<float, bf16>>(isa_, values_, narrow(), n_);
    } else if (v.form == WeightForm::kMaster) {
      bad = run_pass<CastPass<float, float>>(isa_, values_, static_cast<float*>(v.param) + at_, n_);
    } else {
      bad = run_pass<ScanPass<float, false>>(isa_, values_, 1.0f, n_);
    }
    if (bad) note_written(findings);
  }

 private:
  bf16* narrow() const { return static_cast<bf16*>(view_->param) + at_; }

  Isa isa_;
  const ParamView* view_;
  int64_t at_, n_;
  float* values_;
  float copy_[kBlock];
};

}  // namespace muonrt::host
