#pragma once

#include <memory>

#include "backend/bootstrap.hpp"
#include "comm/transport.hpp"

namespace muonrt {

/// Creates a Bootstrap that uses a transport.
std::unique_ptr<Bootstrap> make_bootstrap(std::unique_ptr<Transport> transport);

}  // namespace muonrt
