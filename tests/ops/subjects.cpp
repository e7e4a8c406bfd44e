#include "ops/subjects.hpp"

#include <catch2/catch.hpp>

#include "backend/cuda_device.hpp"

namespace ops_test {

using namespace muonrt;

std::vector<Subject> subjects() {
  std::vector<Subject> all = {{"host, 1 thread", [] { return make_host(1); }},
                              {"host, 3 threads", [] { return make_host(3); }}};
  if (cuda_device_count() > 0) all.push_back({"cuda", [] { return make_device(true); }});
  return all;
}

std::vector<Subject> product_subjects() {
  std::vector<Subject> all = subjects();
  all.push_back({"host, portable products", [] { return make_host(2, true); }});
  if (cuda_device_count() > 0)
    all.push_back({"cuda, the vendor's products", [] { return make_device(false); }});
  return all;
}

Results of_reference(const Run& run) {
  Machine machine(make_reference());
  return run(machine);
}

Results of_host(const Run& run) {
  Machine machine(make_host());
  return run(machine);
}

void check_everywhere(const Results& expected, const Run& run) {
  for (const Subject& subject : subjects()) {
    Machine machine(subject.make());
    const Results got = run(machine);
    INFO(subject.name);
    REQUIRE(got.size() == expected.size());
    const int64_t array = difference(got, expected);
    CAPTURE(array);
    if (array >= 0) {
      const auto i = static_cast<size_t>(array);
      CHECK(difference(got[i], expected[i]) == -1);
    }
    CHECK(array == -1);
  }
}

}  // namespace ops_test
