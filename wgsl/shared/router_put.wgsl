#ifdef ROUTER
  // The workgroup's part of the router, once the weights are on their way. A barrier must follow.
#for i ROUTER_LOADS
  router_put($iu * WG + t, router$i);
#endfor
#endif
