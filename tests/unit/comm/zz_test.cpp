#include <catch2/catch.hpp>
#include "support/tcp_ranks.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_scripts.hpp"
using namespace muonrt;
using namespace transport_test;
TEST_CASE("zz") {
  for (int size : {2,3,5}) for (const Script& script : scripts()) {
    auto begin = Deadline::Clock::now();
    auto t = over_tcp(size);
      const auto errors = on_ranks(size, [&](int rank) {
        Transport& mine = *t[static_cast<size_t>(rank)];
        mine.set_timeout_ms(60'000);
        require_none(problem_of(script, mine));
      });
      double a = seconds_since(begin);
      t.clear();
      printf("%d %s: %g +%g %s\n", size, script.name, a, seconds_since(begin)-a, text_of(errors).c_str());
  }
}
