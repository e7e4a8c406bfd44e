#pragma once

#include <vector>

#include "backend/ops.hpp"

namespace reference {

/// A stream for ops that run at once.
class ImmediateStream : public muonrt::Stream {};

/// Every op a second time: plain loops over memory of this process, executed when called, products
/// and norms summed in float64 and rounded once. Elementwise results equal those of any backend
/// bit for bit (they share update_rules.hpp); products and norms agree within tolerances.hpp.
class ReferenceOps : public muonrt::Ops {
 public:
  int64_t leading_dimension(int64_t cols, muonrt::DType dtype) const override;
  muonrt::Together together() const override { return {}; }
  void reserve(int64_t m, int64_t n, int64_t k, muonrt::DType dtype) override;
  void fill(muonrt::Stream& stream, void* memory, unsigned char value, int64_t bytes) override;
  void copy(muonrt::Stream& stream, void* to, const void* from, int64_t bytes) override;
  void pack_direction(muonrt::Stream& stream, std::span<const muonrt::Piece> pieces,
                      const muonrt::StepTables& tables, muonrt::Wire message,
                      muonrt::Findings* findings) override;
  void pack_addend(muonrt::Stream& stream, std::span<const muonrt::Piece> pieces,
                   const muonrt::ParamView* params, muonrt::Wire message,
                   muonrt::Findings* findings) override;
  void accumulate(muonrt::Stream& stream, std::span<const muonrt::Piece> pieces, float* sums,
                  muonrt::ConstWire message, bool first) override;
  void pack_adamw(muonrt::Stream& stream, std::span<const muonrt::Piece> pieces,
                  const muonrt::StepTables& tables, muonrt::Wire message,
                  muonrt::Findings* findings) override;
  void scan(muonrt::Stream& stream, std::span<const int32_t> list, const muonrt::ParamView* params,
            muonrt::Findings* findings) override;
  void unpack(muonrt::Stream& stream, std::span<const muonrt::MatrixPiece> pieces,
              std::span<const muonrt::Owned> owned, const muonrt::MatrixBatch* matrices,
              muonrt::ConstWire message) override;
  void pack(muonrt::Stream& stream, std::span<const muonrt::MatrixPiece> pieces,
            std::span<const muonrt::Owned> owned, const muonrt::MatrixBatch* matrices,
            muonrt::Wire message, muonrt::Findings* findings) override;
  void normalize(muonrt::Stream& stream, const muonrt::MatrixBatch& in,
                 const muonrt::MatrixBatch& out, const muonrt::Normalization& how,
                 muonrt::Findings* findings) override;
  void scale_rows(muonrt::Stream& stream, const muonrt::MatrixBatch& gram,
                  const muonrt::MatrixBatch& x, const muonrt::MatrixBatch& factors,
                  const muonrt::AolRule& rule) override;
  void multiply(muonrt::Stream& stream, std::span<const muonrt::Product> products) override;
  void add_identity(muonrt::Stream& stream, const muonrt::MatrixBatch& x, float gamma) override;
  void cast_ballot(muonrt::Stream& stream, muonrt::Ballot* ballot, const muonrt::Findings* findings,
                   int64_t step, int64_t orthogonalized, bool local_ok) override;
  void commit_muon(muonrt::Stream& stream, std::span<const muonrt::Piece> pieces,
                   const muonrt::StepTables& tables, muonrt::ConstWire message,
                   const muonrt::Verdict& verdict) override;
  void commit_update(muonrt::Stream& stream, std::span<const muonrt::Piece> pieces,
                     const muonrt::StepTables& tables, muonrt::ConstWire message,
                     const muonrt::Verdict& verdict) override;
  void commit_momentum(muonrt::Stream& stream, std::span<const muonrt::Piece> pieces,
                       const muonrt::StepTables& tables, const muonrt::Verdict& verdict) override;
  void commit_values(muonrt::Stream& stream, std::span<const muonrt::Piece> pieces,
                     const muonrt::ParamView* params, muonrt::ConstWire message,
                     const muonrt::Verdict& verdict) override;
  void commit_adamw(muonrt::Stream& stream, std::span<const int32_t> list,
                    std::span<const muonrt::Piece> pieces, const muonrt::StepTables& tables,
                    const muonrt::Verdict& verdict) override;
  void normuon(muonrt::Stream& stream, const muonrt::MatrixBatch& matrices,
               std::span<const muonrt::NormuonState> states,
               const muonrt::StepTables& tables) override;
  void commit_normuon(muonrt::Stream& stream, std::span<const muonrt::NormuonState> states,
                      const muonrt::ParamView* params, const muonrt::Verdict& verdict) override;
  void sum_squares(muonrt::Stream& stream, std::span<const int32_t> list,
                   const muonrt::ParamView* params, int64_t* sums) override;
  void scale_gradients(muonrt::Stream& stream, const muonrt::GradientFactors& factors,
                       const muonrt::NormClip& clip, const muonrt::GradientTables& tables,
                       muonrt::Findings* findings, double* norm) override;
  void take_logits(muonrt::Stream& stream, const float* from, float* to, int64_t count) override;
  void clip_heads(muonrt::Stream& stream, const muonrt::QkClip& clip,
                  muonrt::Findings* findings) override;
  void tally(muonrt::Stream& stream, const muonrt::MatrixBatch& x, const uint16_t* low,
             muonrt::Tally* tallies) override;
  void lanczos(muonrt::Stream& stream, const muonrt::MatrixBatch& x, float* workspace,
               muonrt::Lanczos* out) override;
  void hash_memory(muonrt::Stream& stream, const void* memory, int64_t bytes,
                   uint64_t* sum) override;

  /// What `multiply` was asked for, in order; for tests that count products.
  struct Asked {
    int64_t m, n, k, count;
    bool symmetric;
    bool product;  // false: alpha is 0, a combination of D and I only
  };
  std::vector<Asked> asked;
  std::vector<Asked> reserved;

 private:
  void multiply(const muonrt::Product& product);
};

/// Element i of an array of `dtype`, as f32.
float load(const void* data, muonrt::DType dtype, int64_t i);
void store(void* data, muonrt::DType dtype, int64_t i, float x);
/// Notes a value that is not finite; `param` is -1 where it belongs to none.
/// @param in_f32  it was so before it was cast.
void note(muonrt::Findings* findings, int32_t param, bool in_f32 = true);

}  // namespace reference
