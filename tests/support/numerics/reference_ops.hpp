#pragma once

#include <vector>

#include "support/wrapped_device.hpp"

namespace reference {

/// The elementwise ops a second time, on the host: plain loops, one element after the other. They
/// share update_rules.hpp with every backend, whose results are equal bit for bit. Products, norms
/// and other sums are the inner ops': tests compare these with tools/textbook.
class ReferenceOps : public wrapped::Ops {
 public:
  using wrapped::Ops::Ops;
  void pack_direction(muonrt::Stream& s, std::span<const muonrt::Piece> pieces,
                      const muonrt::StepTables& tables, muonrt::Wire message,
                      muonrt::Findings* findings) override;
  void pack_addend(muonrt::Stream& s, std::span<const muonrt::Piece> pieces,
                   const muonrt::ParamView* params, muonrt::Wire message,
                   muonrt::Findings* findings) override;
  void accumulate(muonrt::Stream& s, std::span<const muonrt::Piece> pieces, float* sums,
                  muonrt::ConstWire message, bool first) override;
  void pack_adamw(muonrt::Stream& s, std::span<const muonrt::Piece> pieces,
                  const muonrt::StepTables& tables, muonrt::Wire message,
                  muonrt::Findings* findings) override;
  void unpack(muonrt::Stream& s, std::span<const muonrt::MatrixPiece> pieces,
              std::span<const muonrt::Owned> owned, const muonrt::MatrixBatch* matrices,
              muonrt::ConstWire message) override;
  void pack(muonrt::Stream& s, std::span<const muonrt::MatrixPiece> pieces,
            std::span<const muonrt::Owned> owned, const muonrt::MatrixBatch* matrices,
            muonrt::Wire message, muonrt::Findings* findings) override;
  void commit_muon(muonrt::Stream& s, std::span<const muonrt::Piece> pieces,
                   const muonrt::StepTables& tables, muonrt::ConstWire message,
                   const muonrt::Verdict& verdict) override;
  void commit_update(muonrt::Stream& s, std::span<const muonrt::Piece> pieces,
                     const muonrt::StepTables& tables, muonrt::ConstWire message,
                     const muonrt::Verdict& verdict) override;
  void commit_momentum(muonrt::Stream& s, std::span<const muonrt::Piece> pieces,
                       const muonrt::StepTables& tables, const muonrt::Verdict& verdict) override;
  void commit_values(muonrt::Stream& s, std::span<const muonrt::Piece> pieces,
                     const muonrt::ParamView* params, muonrt::ConstWire message,
                     const muonrt::Verdict& verdict) override;
  void commit_adamw(muonrt::Stream& s, std::span<const int32_t> list,
                    std::span<const muonrt::Piece> pieces, const muonrt::StepTables& tables,
                    const muonrt::Verdict& verdict) override;
};

/// Notes the products that it is asked for, in order, and passes them on.
class CountingOps : public wrapped::Ops {
 public:
  using wrapped::Ops::Ops;
  struct Asked {
    int64_t m, n, k;
    bool symmetric;
    bool product;  // false: alpha is 0, a combination of D and I only
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

/// Element i of an array of `dtype`, as f32.
float load(const void* data, muonrt::DType dtype, int64_t i);
void store(void* data, muonrt::DType dtype, int64_t i, float x);

}  // namespace reference
