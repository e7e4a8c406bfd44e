#pragma once

#include <vector>

#include "support/wrapped_device.hpp"

namespace reference_ops {

/// A second implementation of the elementwise ops, on the host, with one loop over the elements. It
/// uses update_rules.hpp like all backends, and the results of all backends must be bitwise
/// identical to its results. Tests also compare its results with tools/reference. Products, norms
/// and other sums are forwarded to the inner ops.
class ReferenceOps : public wrapped::Ops {
 public:
  using wrapped::Ops::Ops;
  void pack_direction(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                      const muonrt::StepTables& tables, muonrt::TypedBuffer message,
                      muonrt::Findings* findings) override;
  void pack_partial_grad(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                         const muonrt::ParamView* params, muonrt::TypedBuffer message,
                         muonrt::Findings* findings) override;
  void accumulate(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks, float* sums,
                  muonrt::ConstTypedBuffer message, bool first) override;
  void pack_adamw(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                  const muonrt::StepTables& tables, muonrt::TypedBuffer message,
                  muonrt::Findings* findings) override;
  void unpack(muonrt::Stream& s, std::span<const muonrt::MatrixBlock> blocks,
              std::span<const muonrt::OwnedMatrix> owned, const muonrt::MatrixBatch* matrices,
              muonrt::ConstTypedBuffer message) override;
  void pack(muonrt::Stream& s, std::span<const muonrt::MatrixBlock> blocks,
            std::span<const muonrt::OwnedMatrix> owned, const muonrt::MatrixBatch* matrices,
            muonrt::TypedBuffer message, muonrt::Findings* findings) override;
  void commit_muon(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                   const muonrt::StepTables& tables, muonrt::ConstTypedBuffer message,
                   const muonrt::CommitCondition& vote_sum) override;
  void commit_update(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                     const muonrt::StepTables& tables, muonrt::ConstTypedBuffer message,
                     const muonrt::CommitCondition& vote_sum) override;
  void commit_momentum(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                       const muonrt::StepTables& tables,
                       const muonrt::CommitCondition& vote_sum) override;
  void commit_values(muonrt::Stream& s, std::span<const muonrt::ShardBlock> blocks,
                     const muonrt::ParamView* params, muonrt::ConstTypedBuffer message,
                     const muonrt::CommitCondition& vote_sum) override;
  void commit_adamw(muonrt::Stream& s, std::span<const int32_t> list,
                    std::span<const muonrt::ShardBlock> blocks, const muonrt::StepTables& tables,
                    const muonrt::CommitCondition& vote_sum) override;
};

/// Forwards all calls, and records the products in the order of the calls.
class CountingOps : public wrapped::Ops {
 public:
  using wrapped::Ops::Ops;
  struct Asked {
    int64_t m, n, k;
    bool symmetric;
    bool product;  // false if alpha is 0, so that the result combines only D and I
  };
  void multiply(muonrt::Stream& s, std::span<const muonrt::Product> products) override {
    for (const muonrt::Product& p : products)
      asked.push_back({p.c.rows, p.c.cols, p.a.cols, p.symmetric, p.alpha != 0.0f});
    inner_.multiply(s, products);
  }
  void reserve(int64_t m, int64_t n, int64_t k, muonrt::DType dtype) override {
    reserved.push_back({m, n, k, m == n, true});
    inner_.reserve(m, n, k, dtype);
  }
  std::vector<Asked> asked, reserved;
};

/// Returns element i of an array of `dtype` as f32.
float load(const void* data, muonrt::DType dtype, int64_t i);
void store(void* data, muonrt::DType dtype, int64_t i, float x);

}  // namespace reference_ops
