#pragma once

#include <string>

#include "model/profile.hpp"

namespace muonrt::tool {

/// A measured profile and what its numbers come from.
struct MachineFile : MachineProfile {
  std::string source;

  /// The JSON text of tools/machines. What has not been measured has another source.
  std::string text() const;
};

/// Bytes of this host's memory.
double host_memory_bytes();

}  // namespace muonrt::tool
