from stentor_vault.command import main

main()
