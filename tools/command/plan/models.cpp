#include "command/plan/models.hpp"

#include <algorithm>

namespace muonrt::tool {

uint64_t ModelTensor::seed() const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

int64_t ModelTensor::matrices() const {
  if (!muon) return 0;
  return (stack() ? shape[0] : 1) * std::max<int64_t>(1, std::ssize(parts));
}

int64_t ModelTensor::elements() const {
  int64_t out = 1;
  for (const int64_t n : shape) out *= n;
  return out;
}

ModelTotals totals(const std::vector<ModelTensor>& tensors) {
  ModelTotals out;
  for (const ModelTensor& t : tensors) {
    ++out.tensors;
    out.elements += t.elements();
    out.muon_tensors += t.muon;
    out.muon_matrices += t.matrices();
    if (t.muon) out.muon_elements += t.elements();
  }
  return out;
}

}  // namespace muonrt::tool
