#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// A fake cuBLASLt over the emulated GPU, which is a shared library with cuBLASLt's name. It
/// computes column-major products of f32, f16 and bf16, with f32 sums over sixteen terms at a time.
/// A search finds up to three algorithms, and the later ones are faster. The library checks the
/// rules of cuBLASLt's manual (sizes, alignment, overlap, the current GPU, the address of the
/// scratch memory), and reports violations with the error.
#pragma GCC visibility push(default)
namespace fake_cublas {

/// Products that are rejected from now on. By default there are none.
struct Refusals {
  bool shapes = false;      // no shape has an algorithm
  bool candidates = false;  // shapes are supported, but no algorithm is found
  bool batches = false;     // no algorithm supports launches of several matrices
  int64_t most = 1 << 30;   // largest number of matrices that an algorithm computes in a launch
  bool launches = false;    // every product ends with an error
  bool single = false;      // the first algorithm of a batch does not compute a single matrix
};
void refuse(const Refusals& refusals);

struct Launch {
  int64_t m, n, k, count;  // column-major
  bool transposed;         // whether the first operand is transposed
  int candidate;           // index of the algorithm among those that were found
};
/// Returns the launches since the last call.
std::vector<Launch> launches();
/// Returns the number of searches for an algorithm so far.
int64_t searches();
/// The arguments of the searches since the last call.
struct Asked {
  int64_t m, n, k, count, stride;  // column-major; `stride` is that of the result
  uint32_t reductions;             // allowed ways to add up a product that is cut in depth
};
std::vector<Asked> asked();
/// Returns the number of handles that were created so far.
int64_t handles();
/// Returns the number of other objects that exist.
int64_t alive();

}  // namespace fake_cublas
#pragma GCC visibility pop
