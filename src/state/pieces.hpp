#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/extent.hpp"

namespace muonrt {

/// One tensor of state: a kind of state of a parameter, or the parameter itself.
struct StateTensor {
  /// As StateKind, and besides those
  static constexpr int32_t kParam = -1;

  int64_t param;
  std::string name;  // of the parameter
  int32_t kind;
  std::string dtype;  // as safetensors names it
  int64_t numel;      // of the whole tensor; NorMuon: lines
  StatePlace place = StatePlace::kLocal;
};

/// "momentum"; "" for a kind that is none.
const char* word_of(int32_t kind);
/// The kind called so; -2 where there is none.
int32_t kind_of(std::string_view word);
int64_t bytes_of(const StateTensor& tensor);  // of an element
/// Momentum, AdamW's variance, NorMuon's moments: zero at the start.
bool is_moment(int32_t kind);

/// A piece of such a tensor on this rank, and where it lies.
struct LocalPiece {
  StateTensor tensor;
  Extent extent;
  void* data;
  /// Whether this rank is to write it: of [first, last) it alone.
  int64_t first = 0, last = 0;
};

/// The tensors of state of all parameters, whoever holds them, parameter by parameter.
std::vector<StateTensor> state_tensors(const OptimizerSettings& settings, bool with_params);

/// What this rank holds, none empty. What several ranks hold they share to write.
std::vector<LocalPiece> local_pieces(const Optimizer& optimizer, bool with_params);

}  // namespace muonrt
