#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/machine.hpp"

// The backends whose ops are tested, and functions that compare their results.
namespace ops_test {

using namespace machines;

struct Subject {
  std::string name;
  std::function<std::unique_ptr<muonrt::Device>()> make;
};

/// Returns all available backends: the host with one thread, the host with three threads, and CUDA
/// if there is a GPU.
std::vector<Subject> subjects();
/// Returns the backends of subjects(), each with all of its implementations of products.
std::vector<Subject> product_subjects();

using Results = std::vector<Bytes>;
using Run = std::function<Results(Machine&)>;

/// Returns the results of the reference implementation. For elementwise ops, all backends must
/// match them bit for bit.
Results of_reference(const Run& run);
/// Returns the results of the host. If they are sums, all backends must match them bit for bit. If
/// they are matrix products, this is not required.
Results of_host(const Run& run);
/// Checks that the results of every backend equal `expected` byte for byte.
void check_everywhere(const Results& expected, const Run& run);

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* at = reinterpret_cast<const unsigned char*>(values.data());
  return Bytes(at, at + values.size() * sizeof(T));
}
/// Returns the bytes of `count` values in the machine's memory.
template <class T>
Bytes bytes_of(Machine& machine, const T* from, int64_t count = 1) {
  return machine.get(reinterpret_cast<const unsigned char*>(from),
                     count * static_cast<int64_t>(sizeof(T)));
}
template <class T>
T value_of(const Bytes& bytes) {
  T out;
  std::memcpy(static_cast<void*>(&out), bytes.data(), sizeof out);
  return out;
}

}  // namespace ops_test
