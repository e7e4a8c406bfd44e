// Fuzzes layouts in text form. Each line is one field: shape, mesh, placements, reading, cuts, row
// bounds, owner, flat.
#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "layout/parse.hpp"

int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  muonrt::LayoutText words;
  std::string* const fields[] = {&words.shape, &words.mesh,       &words.placements, &words.reading,
                                 &words.cuts,  &words.row_bounds, &words.owner,      &words.flat};
  size_t at = 0;
  for (std::string* field : fields) {
    const size_t end = std::min(text.find('\n', at), text.size());
    *field = text.substr(at, end - at);
    at = std::min(end + 1, text.size());
  }
  try {
    if (muonrt::parse_mesh(words.mesh).size() > 4096) return 0;
    const muonrt::Layout layout = muonrt::layout_from_text(words);
    for (const int rank : {0, 1, 7}) {
      if (layout.local_numel(rank) > layout.numel()) __builtin_trap();
    }
  } catch (const muonrt::Error&) {
  }
  return 0;
}
