#pragma once

#include <memory>
#include <utility>

#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "host/host_stream.hpp"

/// Ops and devices that forward all calls. A test overrides individual functions to inject a fault,
/// to delay a product, or to count calls.
namespace wrapped {

class Ops : public muonrt::Ops {
 public:
  explicit Ops(muonrt::Ops& inner) : inner_(inner) {}

  int64_t leading_dimension(int64_t cols, muonrt::DType dtype) const override {
    return inner_.leading_dimension(cols, dtype);
  }
  muonrt::LaunchLimits launch_limits() const override { return inner_.launch_limits(); }
  void reserve(int64_t m, int64_t n, int64_t k, muonrt::DType dtype) override {
    inner_.reserve(m, n, k, dtype);
  }
  void fill(muonrt::Stream& s, void* memory, unsigned char value, int64_t bytes) override {
    inner_.fill(s, memory, value, bytes);
  }
  void copy(muonrt::Stream& s, void* to, const void* from, int64_t bytes) override {
    inner_.copy(s, to, from, bytes);
  }
  void pack_direction(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                      const muonrt::StepTables& tables, muonrt::TypedBuffer message,
                      muonrt::Findings* findings) override {
    inner_.pack_direction(s, blocks, tables, message, findings);
  }
  void pack_partial_grad(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                         const muonrt::ParamView* params, muonrt::TypedBuffer message,
                         muonrt::Findings* findings) override {
    inner_.pack_partial_grad(s, blocks, params, message, findings);
  }
  void accumulate(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks, float* sums,
                  muonrt::ConstTypedBuffer message, bool first) override {
    inner_.accumulate(s, blocks, sums, message, first);
  }
  void pack_adamw(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                  const muonrt::StepTables& tables, muonrt::TypedBuffer message,
                  muonrt::Findings* findings) override {
    inner_.pack_adamw(s, blocks, tables, message, findings);
  }
  void scan(muonrt::Stream& s, std::span<const int32_t> list, const muonrt::ParamView* params,
            muonrt::Findings* findings) override {
    inner_.scan(s, list, params, findings);
  }
  void check_masters(muonrt::Stream& s, std::span<const int32_t> list,
                     const muonrt::ParamView* params, muonrt::Findings* findings) override {
    inner_.check_masters(s, list, params, findings);
  }
  void unpack(muonrt::Stream& s, std::span<const muonrt::MatrixBlock> blocks,
              std::span<const muonrt::OwnedMatrix> owned, const muonrt::MatrixBatch* matrices,
              muonrt::ConstTypedBuffer message) override {
    inner_.unpack(s, blocks, owned, matrices, message);
  }
  void pack(muonrt::Stream& s, std::span<const muonrt::MatrixBlock> blocks,
            std::span<const muonrt::OwnedMatrix> owned, const muonrt::MatrixBatch* matrices,
            muonrt::TypedBuffer message, muonrt::Findings* findings) override {
    inner_.pack(s, blocks, owned, matrices, message, findings);
  }
  void normalize(muonrt::Stream& s, const muonrt::MatrixBatch& in, const muonrt::MatrixBatch& out,
                 const muonrt::Normalization& how, muonrt::Findings* findings) override {
    inner_.normalize(s, in, out, how, findings);
  }
  void scale_rows(muonrt::Stream& s, const muonrt::MatrixBatch& gram, const muonrt::MatrixBatch& x,
                  const muonrt::MatrixBatch& factors, const muonrt::AolRule& rule) override {
    inner_.scale_rows(s, gram, x, factors, rule);
  }
  void multiply(muonrt::Stream& s, std::span<const muonrt::Product> products) override {
    inner_.multiply(s, products);
  }
  void add_identity(muonrt::Stream& s, const muonrt::MatrixBatch& x, float gamma) override {
    inner_.add_identity(s, x, gamma);
  }
  void cast_vote(muonrt::Stream& s, muonrt::Vote* vote, const muonrt::Findings* findings,
                 int64_t fingerprint, int64_t orthogonalized, bool local_ok) override {
    inner_.cast_vote(s, vote, findings, fingerprint, orthogonalized, local_ok);
  }
  void commit_muon(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                   const muonrt::StepTables& tables, muonrt::ConstTypedBuffer message,
                   const muonrt::CommitCondition& vote_sum) override {
    inner_.commit_muon(s, blocks, tables, message, vote_sum);
  }
  void commit_update(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                     const muonrt::StepTables& tables, muonrt::ConstTypedBuffer message,
                     const muonrt::CommitCondition& vote_sum) override {
    inner_.commit_update(s, blocks, tables, message, vote_sum);
  }
  void commit_momentum(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                       const muonrt::StepTables& tables,
                       const muonrt::CommitCondition& vote_sum) override {
    inner_.commit_momentum(s, blocks, tables, vote_sum);
  }
  void commit_values(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                     const muonrt::ParamView* params, muonrt::ConstTypedBuffer message,
                     const muonrt::CommitCondition& vote_sum) override {
    inner_.commit_values(s, blocks, params, message, vote_sum);
  }
  void commit_adamw(muonrt::Stream& s, std::span<const int32_t> list,
                    std::span<const muonrt::ShardBlock> blocks, const muonrt::StepTables& tables,
                    const muonrt::CommitCondition& vote_sum) override {
    inner_.commit_adamw(s, list, blocks, tables, vote_sum);
  }
  void normuon(muonrt::Stream& s, const muonrt::MatrixBatch& matrices,
               std::span<const muonrt::NormuonState> states,
               const muonrt::StepTables& tables) override {
    inner_.normuon(s, matrices, states, tables);
  }
  void commit_normuon(muonrt::Stream& s, std::span<const muonrt::NormuonState> states,
                      const muonrt::ParamView* params,
                      const muonrt::CommitCondition& vote_sum) override {
    inner_.commit_normuon(s, states, params, vote_sum);
  }
  void sum_squares(muonrt::Stream& s, std::span<const int32_t> list,
                   const muonrt::ParamView* params, int64_t* sums) override {
    inner_.sum_squares(s, list, params, sums);
  }
  void scale_gradients(muonrt::Stream& s, const muonrt::GradientFactors& factors,
                       const muonrt::NormClip& clip, const muonrt::GradientTables& tables,
                       muonrt::Findings* findings, double* norm) override {
    inner_.scale_gradients(s, factors, clip, tables, findings, norm);
  }
  void take_logits(muonrt::Stream& s, const float* from, float* to, int64_t count) override {
    inner_.take_logits(s, from, to, count);
  }
  void clip_heads(muonrt::Stream& s, const muonrt::QkClip& clip,
                  muonrt::Findings* findings) override {
    inner_.clip_heads(s, clip, findings);
  }
  void tally(muonrt::Stream& s, const muonrt::MatrixBatch& x, const uint16_t* low,
             muonrt::Tally* tallies) override {
    inner_.tally(s, x, low, tallies);
  }
  void lanczos(muonrt::Stream& s, const muonrt::MatrixBatch& x, float* workspace,
               muonrt::Lanczos* out) override {
    inner_.lanczos(s, x, workspace, out);
  }
  void hash_memory(muonrt::Stream& s, const void* memory, int64_t bytes, uint64_t* sum) override {
    inner_.hash_memory(s, memory, bytes, sum);
  }

 protected:
  muonrt::Ops& inner_;
};

class Device : public muonrt::Device {
 public:
  /// Creates a device whose ops are wrapped by `make`.
  template <class Make>
  Device(std::unique_ptr<muonrt::Device> inner, Make make)
      : inner_(std::move(inner)), ops_(make(inner_->ops())) {}

  std::string describe() const override { return inner_->describe(); }
  void* allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  void release(void* memory) noexcept override { inner_->release(memory); }
  int64_t allocations() const override { return inner_->allocations(); }
  int64_t allocated_bytes() const override { return inner_->allocated_bytes(); }
  int64_t objects() const override { return inner_->objects(); }
  std::unique_ptr<muonrt::Stream> create_stream(muonrt::StreamKind kind) override {
    return inner_->create_stream(kind);
  }
  std::unique_ptr<muonrt::Event> create_event() override { return inner_->create_event(); }
  void record(muonrt::Event& event, muonrt::Stream& stream) override {
    inner_->record(event, stream);
  }
  void wait(muonrt::Stream& stream, const muonrt::Event& event) override {
    inner_->wait(stream, event);
  }
  void call(muonrt::Stream& stream, int (*function)(void*, void*), void* argument,
            int64_t* failed) override {
    inner_->call(stream, function, argument, failed);
  }
  void timestamp(muonrt::Stream& stream, int64_t* where) override {
    inner_->timestamp(stream, where);
  }
  void synchronize(const muonrt::Event& event, muonrt::Deadline deadline) override {
    inner_->synchronize(event, deadline);
  }
  std::optional<muonrt::Error> error() const override { return inner_->error(); }
  void clear_error() override { inner_->clear_error(); }
  muonrt::Ops& ops() override { return *ops_; }

 private:
  std::unique_ptr<muonrt::Device> inner_;
  std::unique_ptr<muonrt::Ops> ops_;
};

/// Returns a device that wraps the ops of `inner` in an object `Wrapping(ops, arguments...)`.
template <class Wrapping, class... Arguments>
std::unique_ptr<muonrt::Device> with(std::unique_ptr<muonrt::Device> inner,
                                     Arguments&&... arguments) {
  return std::make_unique<Device>(std::move(inner), [&](muonrt::Ops& ops) {
    return std::unique_ptr<muonrt::Ops>(
        std::make_unique<Wrapping>(ops, std::forward<Arguments>(arguments)...));
  });
}

}  // namespace wrapped
